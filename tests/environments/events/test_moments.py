import pytest
import torch

from isaaclab_arena.environments.events import MomentRing
from isaaclab_arena.environments.mdp.task import Task, TaskSpec
from isaaclab_arena.interfaces.episode import EpisodeEvents
from tests.environments.building import build, build_on_the_floor, hold_still, start


def test_the_moments_of_an_episode_are_what_the_simulation_showed_in_each_step():
    env = build("push_to_goal", num_envs=3)
    ring = MomentRing(env.backend, num_envs=3, capacity=4)
    start(env)
    ring.start([0, 1, 2])
    shown = []
    for step in range(6):
        if step == 2:
            start(env, [1])
            ring.start([1])
            shown.append(env.backend.body_position("object/body")[1].clone())
        env.step(hold_still(env) + 0.1 * step)
        ring.keep()
        if step >= 2:
            shown.append(env.backend.body_position("object/body")[1].clone())
    (moments,) = ring.moments([1])
    assert len(moments) == 5
    assert torch.equal(moments.body_position("object/body"), torch.stack(shown))
    assert torch.equal(moments.site_position("robot/tcp")[-1], env.backend.site_position("robot/tcp")[1])
    assert torch.equal(moments.body_position("goal/body")[0], env.backend.body_position("goal/body")[1])
    with pytest.raises(KeyError, match="not loose"):
        moments.body_orientation("goal/body")


def test_a_step_that_is_made_again_is_kept_once():
    env = build("lift_object")
    ring = MomentRing(env.backend, num_envs=1, capacity=4)
    start(env)
    ring.start([0])
    ring.keep()
    env.step(hold_still(env))
    ring.take_back()
    ring.keep()
    (moments,) = ring.moments([0])
    assert len(moments) == 2
    assert torch.equal(moments.qpos[-1:], env.backend.qpos)


def test_what_a_task_does_not_name_is_not_kept_and_asking_for_it_says_so():
    env = build("lift_object")
    ring = MomentRing(env.backend, num_envs=1, capacity=4, fields=("qpos",))
    start(env)
    ring.start([0])
    ring.keep()
    (moments,) = ring.moments([0])
    assert torch.equal(moments.qpos[-1:], env.backend.qpos)
    with pytest.raises(AttributeError, match=r"moments have no 'ctrl'; a task names .* moment_fields"):
        _ = moments.ctrl


@pytest.mark.parametrize(
    ("task", "root", "part"), [("velocity_go1", "trunk", "FR_foot"), ("walk_humanoid", "pelvis", "torso")]
)
def test_the_root_of_a_robot_is_where_its_free_joint_is_and_its_parts_are_not_taken_for_it(task, root, part):
    env = build_on_the_floor(task, num_envs=2)
    start(env)
    env.begin_events([0, 1])
    for _ in range(3):
        env.step(torch.full((2, env.action_spec.shape[0]), 0.5))
    (moments,) = env.kept_moments([1])
    root, part = f"robot/{root}", f"robot/{part}"
    torch.testing.assert_close(moments.body_position(root)[-1], env.backend.body_position(root)[1])
    torch.testing.assert_close(moments.body_orientation(root)[-1], env.backend.body_orientation(root)[1])
    with pytest.raises(KeyError, match=f"{part} is not loose"):
        moments.body_orientation(part)


class TellsInItsOwnWay(Task):
    """Says that it tells events, and makes them without facts."""

    tells_events = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  as a stranger may write it

    def judge(self, backend, running):
        raise NotImplementedError

    def events(self, moments, env_id, *, solved, max_steps):
        return EpisodeEvents(progress=float(solved), decisive=None, seen={})


def test_a_task_that_says_itself_whether_it_tells_events_is_believed_and_so_is_one_derived_from_it():
    spec = TaskSpec(name="own", instruction="do it", time_limit_s=1.0, hold_steps=1)
    derived = type("Derived", (TellsInItsOwnWay,), {})
    silent = type("Silent", (Task,), {"judge": TellsInItsOwnWay.judge})
    assert [each(spec).tells_events for each in (TellsInItsOwnWay, derived, silent)] == [True, True, False]
