import math

import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from tests.environments.building import build_on_the_floor, play, refusal, solved, start

SLIDER, HINGE = "robot/slider", "robot/hinge"


def begin(angle: float, *, position: float = 0.0, **options) -> FloorEnvironment:
    env = build_on_the_floor("cartpole", **options)
    at_rest = {"cart.velocity": 0.0, "pole.angular_velocity": 0.0}
    env.reset(torch.tensor([0]), [{"cart.position": position, "pole.angle": angle, **at_rest}])
    return env


def balance(env: FloorEnvironment, num_steps: int) -> list[Step]:
    """Hold the pole up by a linear feedback of cart and pole."""
    steps = []
    for _ in range(num_steps):
        x, angle = (env.backend.joint_position(joint)[:, 0] for joint in (SLIDER, HINGE))
        speed, rate = (env.backend.joint_velocity(joint)[:, 0] for joint in (SLIDER, HINGE))
        force = 1.0 * x + 2.4 * speed + 30.0 * angle + 8.0 * rate
        steps.append(env.step((force / 20.0)[:, None].float()))
    return steps


def put(env: FloorEnvironment, *, angle: float, position: float = 0.0) -> None:
    for joint, value in ((HINGE, angle), (SLIDER, position)):
        env.backend.qpos[0, env.backend.names.joint_qpos[joint]] = value
        env.backend.qvel[0, env.backend.names.joint_dof[joint]] = 0


def test_a_pole_that_is_balanced_all_the_time_counts_when_the_time_is_up():
    env = begin(0.1, position=0.2)
    steps = balance(env, env.max_episode_length)
    assert [bool(solved(step)) for step in steps] == [False] * 499 + [True]
    assert steps[-1].terminated
    assert steps[-1].metrics["upright_s"].item() == pytest.approx(10.0)


def test_a_pole_that_leaned_too_far_once_is_balanced_in_vain():
    env = begin(0.0)
    balance(env, 100)
    put(env, angle=0.25)
    steps = balance(env, 400)
    assert not any(step.terminated for step in steps)
    assert steps[-1].truncated


def test_a_pole_that_is_left_alone_falls_and_is_lost():
    env = begin(0.1)
    steps = [env.step(torch.zeros(1, 1)) for _ in range(100)]
    ended = next(index for index, step in enumerate(steps) if step.terminated)
    assert 10 < ended < 60
    assert not solved(steps[ended])


@pytest.mark.parametrize("options", [{"start": "upright"}, {"start": "hanging"}])
def test_a_cart_off_its_rail_is_lost(options):
    env = begin(math.pi if options["start"] == "hanging" else 0.0, position=0.9, **options)
    steps = [env.step(torch.ones(1, 1)) for _ in range(20)]
    assert any(step.terminated and not solved(step) for step in steps)


def test_a_hanging_pole_is_not_lost_and_not_solved_by_doing_nothing():
    records = play(build_on_the_floor("cartpole", num_envs=3, start="hanging"), ZeroActionPolicy(), 3).records
    assert [record.outcome for record in records.values()] == ["timeout"] * 3


def test_a_pole_that_hung_has_to_stand_for_the_last_two_seconds():
    early, late = begin(math.pi, start="hanging"), begin(math.pi, start="hanging")
    for env, moment in ((early, 395), (late, 405)):
        for _ in range(moment):
            env.step(torch.zeros(1, 1))
        put(env, angle=0.0)
    assert solved(balance(early, 105)[-1])
    assert not solved(balance(late, 95)[-1])


def test_the_reward_is_highest_for_a_pole_that_stands_still_in_the_middle():
    rewards = [
        begin(angle, position=x).step(torch.zeros(1, 1)).reward.item() for angle, x in ((0, 0), (0.7, 0), (0, 0.8))
    ]
    assert rewards[0] == pytest.approx(0.02, rel=1e-3)
    assert max(rewards[1:]) < 0.95 * rewards[0]


def test_the_angle_is_observed_as_cosine_and_sine():
    env = build_on_the_floor("cartpole", num_envs=4, start="hanging")
    seen = start(env)["policy"]["pole_angle"]
    angle = env.backend.joint_position(HINGE)[:, 0]
    torch.testing.assert_close(seen, torch.stack((angle.cos(), angle.sin()), dim=-1).float())


def test_an_action_is_a_share_of_the_greatest_force():
    env = begin(math.pi, start="hanging")
    env.step(torch.tensor([[0.5]]))
    assert env.backend.ctrl.item() == 10.0
    env.step(torch.tensor([[7.0]]))
    assert env.backend.ctrl.item() == 20.0


def test_an_unknown_start_is_refused_with_a_suggestion():
    (problem,) = refusal("cartpole", start="uprigth").problems
    assert (problem.key, problem.message) == ("start", "no start called 'uprigth'; did you mean 'upright'?")
