"""Tasks of an arm at a table in real physics; their rules are held in numbers by `test_success_rules`."""

import pytest
import torch

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.tasks.articulated import (
    OPEN_M,
    OPEN_RAD,
    PULLED_M,
    PULLED_RAD,
    TRAVEL_M,
)
from isaaclab_arena.environments.tasks.grasping import LIFTED_STEPS
from isaaclab_arena.environments.tasks.pushing import CUBE_TOLERANCE_M
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, episode, hold_still, start, steps_of


def put(env: TableEnvironment, prefix: str, position: tuple[float, float, float]) -> None:
    """Put an object of env slot 0 somewhere, upright and at rest."""
    names = env.backend.names
    env.backend.qpos[0, names.joint_qpos[f"{prefix}/free"]] = torch.tensor([*position, 1, 0, 0, 0]).double()
    env.backend.qvel[0, names.joint_dof[f"{prefix}/free"]] = 0


def turn_joint(env: TableEnvironment, joint: str, position: float) -> None:
    """Put a joint of env slot 0 somewhere, at rest."""
    env.backend.qpos[0, env.backend.names.joint_qpos[joint]] = position
    env.backend.qvel[0, env.backend.names.joint_dof[joint]] = 0


def solve(env: TableEnvironment, index: int = 0, *, told: str | None = None) -> list[Step]:
    """Play one episode with the scripted policy, telling it what the environment says or something else."""
    which = episode(index)
    conditions = env.draw_conditions(which.conditions_generator())
    observation = env.reset(torch.tensor([0]), [conditions])
    policy = ScriptedPolicy()
    words = told or env.instruction(conditions)
    policy.start_episodes(
        env, [EpisodeStart(env_id=0, episode=which, conditions=conditions, language_instruction=words)]
    )
    steps = []
    while not steps or not bool(steps[-1].terminated | steps[-1].truncated):
        steps.append(env.step(policy.get_action(env, observation)))
        observation = steps[-1].observation
    return steps


def started(name: str):
    env = build(name)
    start(env)
    return env


def test_an_object_that_lies_on_the_hand_is_not_held():
    env = started("lift_object")
    x, y, z = env.backend.site_position("robot/tcp")[0].tolist()
    for _ in range(2 * LIFTED_STEPS):
        put(env, "object", (x, y, z + 0.16))
        assert not env.step(hold_still(env)).success


@pytest.mark.parametrize("name", ["lift_object", "pick_and_place", "push_cube"])
def test_an_object_that_falls_off_the_table_ends_the_episode_once_as_a_failure(name):
    env = started(name)
    put(env, "object", (0.5, 0.9, -0.1))
    steps = steps_of(env, stay(env), 4)
    assert [bool(step.terminated) for step in steps] == [True, False, False, False]
    assert not any(step.success or step.truncated for step in steps)


def test_no_observation_tells_which_cube_is_asked_for_and_a_policy_that_is_told_another_fails():
    env = build("pick_by_colour", num_envs=2)
    conditions = dict(env.draw_conditions(episode(0).conditions_generator()))
    both = [{**conditions, "goal.colour": colour} for colour in ("red", "blue")]
    observation = env.reset(torch.arange(2), both)
    assert all(torch.equal(value[0], value[1]) for value in observation["policy"].values())
    words = {colour: f"pick up the {colour} cube" for colour in ("red", "blue")}
    assert [env.instruction(each) for each in both] == list(words.values())
    steps = solve(build("pick_by_colour"), told=words["blue" if conditions["goal.colour"] == "red" else "red"])
    assert steps[-1].terminated
    assert not steps[-1].success


def stay(env) -> torch.Tensor:
    """Return the action that keeps an arm where it is told to be, the gripper open, in its task's action mode."""
    if env.task_name != "push_cube":
        return hold_still(env)
    action = torch.zeros(env.num_envs, *env.action_spec.shape)
    action[:, -1] = 0.08
    return action


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("open_drawer", {"final_opening_m": OPEN_M, "pulled_m": PULLED_M}, {}),
        ("close_drawer", {}, {"final_opening_m": 0.01}),
        ("open_microwave", {"final_angle_rad": OPEN_RAD, "pulled_rad": PULLED_RAD}, {}),
        ("press_button", {"final_press_m": 0.9 * TRAVEL_M}, {}),
        ("push_cube", {}, {"final_goal_distance_m": CUBE_TOLERANCE_M}),
    ],
)
def test_what_a_hand_does_with_a_door_a_drawer_a_button_or_a_cube_is_measured(name, least, most):
    step = solve(build(name))[-1]
    assert step.success
    assert all(step.metrics[metric] >= value for metric, value in least.items())
    assert all(step.metrics[metric] <= value for metric, value in most.items())


@pytest.mark.parametrize(
    ("name", "metric", "low", "high"),
    [
        ("close_drawer", "final_opening_m", 0.11, 0.2),
        ("open_drawer", "final_opening_m", 0.0, 0.021),
        ("open_microwave", "final_angle_rad", -0.01, 0.01),
    ],
)
def test_drawers_and_doors_stay_by_themselves_as_they_start(name, metric, low, high):
    env = started(name)
    opening = [env.step(hold_still(env)).metrics[metric].item() for _ in range(20)]
    assert low < min(opening) <= max(opening) < high
    assert max(opening) - min(opening) < 2e-3


def test_the_spring_brings_the_button_up_again():
    env = started("press_button")
    turn_joint(env, "button/press", TRAVEL_M)
    steps_of(env, hold_still(env), 10)
    assert env.backend.joint_position("button/press")[0, 0] < 0.1 * TRAVEL_M
