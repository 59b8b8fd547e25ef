"""Tasks of an arm at a table in real physics; their rules are held in numbers by `test_success_rules`."""

import math

import pytest
import torch

from isaaclab_arena.environments.tasks.articulated import (
    NUM_WAYPOINTS,
    OPEN_M,
    OPEN_RAD,
    PULLED_M,
    PULLED_RAD,
    TRAVEL_M,
)
from isaaclab_arena.environments.tasks.grasping import LIFTED_STEPS, REACHED_STEPS
from isaaclab_arena.environments.tasks.pushing import CUBE_TOLERANCE_M, FARTHEST_GOAL_M, NEAREST_GOAL_M
from isaaclab_arena.interfaces.episode import Outcome, point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, episode, hold_still, play, start, steps_of
from tests.environments.moving import put, solve, turn_joint


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


def test_each_episode_has_an_instruction_of_its_own():
    records = play(build("pick_by_colour", num_envs=4), ScriptedPolicy(), 8).records.values()
    assert {record.language_instruction for record in records} == {"pick up the red cube", "pick up the blue cube"}
    assert all(str(record.conditions["goal.colour"]) in record.language_instruction for record in records)
    assert sum(record.outcome is Outcome.SUCCESS for record in records) >= 7


def test_a_policy_that_follows_another_instruction_fails():
    env = build("pick_by_colour")
    asked = env.draw_conditions(episode(0).conditions_generator())["goal.colour"]
    steps = solve(env, told=f"pick up the {'blue' if asked == 'red' else 'red'} cube")
    assert steps[-1].terminated
    assert not steps[-1].success


def test_no_observation_tells_which_cube_is_asked_for():
    env = build("pick_by_colour", num_envs=2)
    conditions = dict(env.draw_conditions(episode(0).conditions_generator()))
    both = [{**conditions, "goal.colour": colour} for colour in ("red", "blue")]
    observation = env.reset(torch.arange(2), both)
    assert all(torch.equal(value[0], value[1]) for value in observation["policy"].values())
    assert [env.instruction(each) for each in both] == ["pick up the red cube", "pick up the blue cube"]


def stay(env) -> torch.Tensor:
    """Return the action that keeps an arm where it is told to be, the gripper open, in its task's action mode."""
    if env.task_name != "push_cube":
        return hold_still(env)
    action = torch.zeros(env.num_envs, *env.action_spec.shape)
    action[:, -1] = 0.08
    return action


def test_the_disc_lies_in_every_direction_and_never_where_the_cube_already_is():
    env = build("push_cube")
    directions = []
    for index in range(60):
        conditions = env.draw_conditions(episode(index).conditions_generator())
        x, y, _ = point(conditions["cube.position"])
        goal_x, goal_y, _ = point(conditions["goal.position"])
        assert NEAREST_GOAL_M <= math.hypot(goal_x - x, goal_y - y) <= FARTHEST_GOAL_M
        directions.append(math.atan2(goal_y - y, goal_x - x))
    quarters = {int((direction + math.pi) // (math.pi / 2)) for direction in directions}
    assert quarters >= {0, 1, 2, 3}


def test_the_reward_grows_as_the_cube_nears_the_disc():
    rewards, env = [], build("push_cube")
    for away in (0.15, 0.10, 0.05, 0.0):
        start(env)
        x, y, _ = env.backend.body_position("goal/body")[0].tolist()
        put(env, "object", (x, y + away, 0.025))
        rewards.append(env.step(stay(env)).reward.item())
    assert rewards == sorted(set(rewards))


def test_a_hand_that_is_not_behind_the_cube_is_led_above_the_place_from_which_it_can_come_down():
    env = build("push_cube")
    x, y, _ = start(env)["policy"]["eef_pos"][0].tolist()
    put(env, "object", (x, y, 0.025))
    policy = env.step(stay(env)).observation["policy"]
    to_goal = policy["object_to_goal"][0, :2]
    cube_to_point = policy["eef_pos"][0] + policy["eef_to_push_point"][0] - policy["object_pos"][0]
    assert (-torch.dot(cube_to_point[:2], to_goal) / to_goal.norm()).item() == pytest.approx(0.065, abs=1e-4)
    assert cube_to_point[2].item() == pytest.approx(0.08, abs=1e-3)


def test_a_closed_gripper_is_worth_more_than_an_open_one():
    rewards, env = [], build("push_cube")
    for width in (0.08, 0.0):
        start(env)
        action = stay(env)
        action[:, -1] = width
        rewards.append(env.step(action).reward.item())
    assert rewards[1] - rewards[0] == pytest.approx(0.1, abs=0.02)


def test_a_new_episode_counts_its_own_steps_at_the_target():
    env = build("reach")
    at_the_target = {"robot.joint_position": env.robot.home, "target.position": (0.42238, 0.0, 0.35632)}
    for steps in (REACHED_STEPS - 1, REACHED_STEPS):
        env.reset(torch.tensor([0]), [at_the_target])
        successes = [bool(env.step(hold_still(env)).success) for _ in range(steps)]
        assert successes == [step == REACHED_STEPS - 1 for step in range(steps)]


def test_a_new_episode_has_all_of_its_time_and_an_env_slot_then_keeps_its_last_observation():
    env = build("reach")
    env.max_episode_length = 6
    away = {"robot.joint_position": env.robot.home, "target.position": (0.5, 0.2, 0.2)}
    made = []
    for num_steps in (4, 6):
        env.reset(torch.tensor([0]), [away])
        made = steps_of(env, hold_still(env), num_steps)
        assert [bool(step.truncated) for step in made] == [index == 5 for index in range(num_steps)]
    after = env.step(torch.zeros(1, 8))
    assert not after.truncated
    for term, value in made[-1].observation["policy"].items():
        assert torch.equal(after.observation["policy"][term], value)


def test_a_control_step_is_a_twentieth_of_a_second_of_physics():
    """The first number of the integration state is the time."""
    env = started("reach")
    for number in range(1, 4):
        env.step(hold_still(env))
        assert env.backend.integration_states([0])[0][0] == pytest.approx(0.05 * number)


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
    ("name", "joint", "speed", "metrics"),
    [
        ("open_drawer", "cabinet/slide", 3.0, {"final_opening_m": 0.15, "pulled_m": 0.0}),
        ("open_microwave", "microwave/hinge", 6.0, {"final_angle_rad": 0.5, "pulled_rad": 0.0}),
    ],
)
def test_what_is_flung_open_without_a_hand_is_not_pulled(name, joint, speed, metrics):
    env = started(name)
    env.backend.qvel[0, env.backend.names.joint_dof[joint]] = speed
    steps = steps_of(env, hold_still(env), 10)
    (moved, least), (pulled, nothing) = metrics.items()
    assert steps[-1].metrics[moved] > least
    assert steps[-1].metrics[pulled] == nothing
    assert not any(step.success for step in steps)


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


def test_the_handle_moves_with_the_drawer():
    env = build("open_drawer")
    before = start(env)["policy"]
    turn_joint(env, "cabinet/slide", float(before["drawer_opening"]) + 0.1)
    after = env.step(hold_still(env)).observation["policy"]
    assert (before["handle_pos"] - after["handle_pos"])[0, 0] == pytest.approx(0.1, abs=0.01)
    assert (after["drawer_opening"] - before["drawer_opening"])[0, 0] == pytest.approx(0.1, abs=0.01)


def test_the_waypoints_lie_on_the_way_of_the_handle():
    env = started("open_microwave")
    for number, degrees in zip(range(1, NUM_WAYPOINTS + 1), (15, 30, 45, 60, 72), strict=True):
        turn_joint(env, "microwave/hinge", math.radians(degrees))
        env.step(hold_still(env))
        handle, way = (env.backend.site_position(f"microwave/{name}")[0] for name in ("handle", f"way_{number}"))
        torch.testing.assert_close(handle, way, atol=2e-3, rtol=0)


def test_the_spring_brings_the_button_up_again():
    env = started("press_button")
    turn_joint(env, "button/press", TRAVEL_M)
    steps_of(env, hold_still(env), 10)
    assert env.backend.joint_position("button/press")[0, 0] < 0.1 * TRAVEL_M
