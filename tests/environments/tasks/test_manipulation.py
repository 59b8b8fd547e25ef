"""Tasks of an arm at a table."""

import math

import pytest
import torch

from isaaclab_arena.environments.tasks.grasping import LIFT_HEIGHT_M, LIFTED_STEPS, PLACED_STEPS, REACHED_STEPS
from isaaclab_arena.environments.tasks.pushing import (
    CUBE_TOLERANCE_M,
    FARTHEST_GOAL_M,
    HOLD_STEPS,
    LIFTED_M,
    NEAREST_GOAL_M,
)
from isaaclab_arena.environments.tasks.two_cubes import SORTED_STEPS, STACKED_STEPS
from isaaclab_arena.interfaces.episode import Outcome, point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, episode, hold_still, play, start, steps_of
from tests.environments.moving import put as colour_put
from tests.environments.moving import solve


def put_object(env, position: tuple[float, float, float], velocity=(0.0, 0.0, 0.0)) -> None:
    """Put the object of env slot 0 somewhere, upright."""
    names = env.backend.names
    env.backend.qpos[0, names.joint_qpos["object/free"]] = torch.tensor([*position, 1, 0, 0, 0]).double()
    env.backend.qvel[0, names.joint_dof["object/free"]] = torch.tensor([*velocity, 0, 0, 0]).double()


def lift(env):
    """Play the scripted policy to the end; return the steps."""
    policy, observation = ScriptedPolicy(), start(env)
    steps = []
    while not steps or not (steps[-1].terminated | steps[-1].truncated).all():
        steps.append(env.step(policy.get_action(env, observation)))
        observation = steps[-1].observation
    return steps


def test_success_is_half_a_second_above_the_height_without_a_break():
    steps = lift(build("lift_object"))
    high = [bool(step.metrics["final_height_m"] >= LIFT_HEIGHT_M) for step in steps]
    assert steps[-1].success
    assert high[-LIFTED_STEPS:] == [True] * LIFTED_STEPS
    assert not high[-LIFTED_STEPS - 1]


def test_a_thrown_object_is_not_lifted():
    env = build("lift_object")
    start(env)
    put_object(env, (0.5, 0.3, 0.05), velocity=(0.0, 0.0, 5.0))
    steps = [env.step(hold_still(env)) for _ in range(20)]
    assert sum(bool(step.metrics["final_height_m"] > LIFT_HEIGHT_M) for step in steps) > LIFTED_STEPS
    assert not any(step.success for step in steps)


def test_an_object_that_lies_on_the_hand_is_not_held():
    env = build("lift_object")
    start(env)
    tcp = env.backend.site_position("robot/tcp")[0].tolist()
    for _ in range(2 * LIFTED_STEPS):
        put_object(env, (tcp[0], tcp[1], tcp[2] + 0.16))
        assert not env.step(hold_still(env)).success


def test_an_object_that_is_let_go_starts_the_count_again():
    env = build("lift_object")
    policy, observation = ScriptedPolicy(), start(env)
    while env.task.held_steps[0] < LIFTED_STEPS - 2:
        observation = env.step(policy.get_action(env, observation)).observation
    opened = policy.get_action(env, observation)
    opened[0, -1] = 0.08
    step = [env.step(opened) for _ in range(4)][-1]
    assert env.task.held_steps[0] == 0
    assert not step.success


def test_an_object_that_falls_off_the_table_ends_the_episode_as_a_failure():
    env = build("lift_object")
    start(env)
    put_object(env, (0.5, 0.9, 0.05))
    steps = steps_of(env, hold_still(env), 20)
    assert sum(bool(step.terminated) for step in steps) == 1
    assert not any(step.success or step.truncated for step in steps)


def test_the_reward_rises_from_the_table_to_the_goal():
    rewards = [step.reward.item() for step in lift(build("lift_object"))]
    assert rewards[0] < rewards[len(rewards) // 2] < rewards[-1]


def put(env, joint: str, position, quaternion=(1.0, 0.0, 0.0, 0.0)) -> None:
    """Put a loose thing of env slot 0 somewhere, at rest."""
    env.backend.qpos[0, env.backend.names.joint_qpos[joint]] = torch.tensor([*position, *quaternion]).double()
    env.backend.qvel[0, env.backend.names.joint_dof[joint]] = 0


def started():
    env = build("pick_and_place")
    start(env)
    return env, env.backend.body_position("bin/body")[0].tolist()


def test_an_object_at_rest_in_the_bin_is_placed_once_it_has_stayed():
    env, (x, y, _) = started()
    put(env, "object/free", (x, y, 0.034))
    successes = [bool(env.step(hold_still(env)).success) for _ in range(12)]
    assert successes.index(True) >= PLACED_STEPS - 1


@pytest.mark.parametrize(
    "offset",
    [pytest.param((0.14, 0.0, 0.025), id="beside"), pytest.param((0.0, 0.094, 0.096), id="on the rim")],
)
def test_an_object_that_is_not_in_the_bin_is_not_placed(offset):
    env, (x, y, _) = started()
    for _ in range(2 * PLACED_STEPS):
        put(env, "object/free", (x + offset[0], y + offset[1], offset[2]))
        assert not env.step(hold_still(env)).success


def test_an_object_that_falls_through_the_air_over_the_bin_is_not_placed():
    env, (x, y, _) = started()
    for _ in range(2 * PLACED_STEPS):
        put(env, "object/free", (x, y, 0.15))
        assert not env.step(hold_still(env)).success


def test_a_bin_on_its_side_holds_nothing():
    env, (x, y, _) = started()
    half = math.sqrt(0.5)
    for _ in range(2 * PLACED_STEPS):
        put(env, "bin/free", (x, y, 0.1), (half, half, 0.0, 0.0))
        put(env, "object/free", (x, y, 0.03))
        assert not env.step(hold_still(env)).success


def test_an_object_still_in_the_gripper_is_not_placed():
    env = build("pick_and_place")
    policy, observation = ScriptedPolicy(), start(env)
    closed_in_bin = 5
    while policy._player is None or policy._player.phase[0] < closed_in_bin:
        observation = env.step(policy.get_action(env, observation)).observation
    low = policy.get_action(env, observation)
    assert not any(env.step(low).success for _ in range(40))


def test_losing_the_object_ends_the_episode_as_a_failure():
    env, _ = started()
    put(env, "object/free", (0.5, 0.0, -0.3))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success


def test_each_episode_has_an_instruction_of_its_own():
    records = play(build("pick_by_colour", num_envs=4), ScriptedPolicy(), 12).records.values()
    told = {record.language_instruction for record in records}
    assert told == {"pick up the red cube", "pick up the blue cube"}
    assert all(str(record.conditions["goal.colour"]) in record.language_instruction for record in records)
    assert sum(record.outcome is Outcome.SUCCESS for record in records) >= 11


def test_whoever_follows_another_instruction_fails():
    env = build("pick_by_colour")
    asked = env.draw_conditions(episode(0).conditions_generator())["goal.colour"]
    other = "blue" if asked == "red" else "red"
    steps = solve(env, told=f"pick up the {other} cube")
    assert steps[-1].terminated
    assert not steps[-1].success


def test_no_observation_tells_which_cube_is_asked_for():
    env = build("pick_by_colour", num_envs=2)
    conditions = dict(env.draw_conditions(episode(0).conditions_generator()))
    both = [{**conditions, "goal.colour": colour} for colour in ("red", "blue")]
    observation = env.reset(torch.arange(2), both)
    assert all(torch.equal(value[0], value[1]) for value in observation["policy"].values())
    assert [env.instruction(each) for each in both] == ["pick up the red cube", "pick up the blue cube"]


@pytest.mark.parametrize("colour", ["red", "blue"])
def test_the_other_cube_in_the_air_loses(colour):
    env = build("pick_by_colour")
    conditions = {**env.draw_conditions(episode(0).conditions_generator()), "goal.colour": colour}
    env.reset(torch.tensor([0]), [conditions])
    colour_put(env, "blue" if colour == "red" else "red", (0.5, 0.2, 0.2))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success


def stay(env) -> torch.Tensor:
    """Return the action that keeps an arm of end-effector steps where it is told to be, the gripper open."""
    action = torch.zeros(env.num_envs, *env.action_spec.shape)
    action[:, -1] = 0.08
    return action


def goal_of(env) -> tuple[float, float]:
    x, y, _ = env.backend.body_position("goal/body")[0].tolist()
    return x, y


@pytest.mark.parametrize("index", range(3))
def test_a_pushed_cube_ends_on_the_disc(index):
    steps = solve(build("push_cube"), index)
    assert steps[-1].success
    assert steps[-1].metrics["final_goal_distance_m"] < CUBE_TOLERANCE_M


def test_success_lasts_a_quarter_of_a_second():
    env = build("push_cube")
    start(env)
    colour_put(env, "object", (*goal_of(env), 0.025))
    successes = [bool(env.step(stay(env)).success) for _ in range(HOLD_STEPS)]
    assert successes == [False] * (HOLD_STEPS - 1) + [True]


def test_a_cube_beside_the_disc_does_not_count():
    env = build("push_cube")
    start(env)
    x, y = goal_of(env)
    colour_put(env, "object", (x, y + CUBE_TOLERANCE_M + 0.01, 0.025))
    assert not any(env.step(stay(env)).success for _ in range(2 * HOLD_STEPS))


def test_a_cube_that_falls_off_the_table_is_lost():
    env = build("push_cube")
    start(env)
    colour_put(env, "object", (0.5, 0.8, -0.1))
    step = env.step(stay(env))
    assert step.terminated
    assert not step.success


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
    rewards = []
    for away in (0.15, 0.10, 0.05, 0.0):
        env = build("push_cube")
        start(env)
        x, y = goal_of(env)
        colour_put(env, "object", (x, y + away, 0.025))
        rewards.append(env.step(stay(env)).reward.item())
    assert rewards == sorted(rewards)
    assert len(set(rewards)) == len(rewards)


def test_a_hand_that_is_not_behind_the_cube_is_led_above_the_place_from_which_it_can_come_down():
    env = build("push_cube")
    policy = start(env)["policy"]
    x, y, _ = policy["eef_pos"][0].tolist()
    colour_put(env, "object", (x, y, 0.025))
    policy = env.step(stay(env)).observation["policy"]
    to_goal = policy["object_to_goal"][0, :2]
    cube_to_point = policy["eef_pos"][0] + policy["eef_to_push_point"][0] - policy["object_pos"][0]
    assert (-torch.dot(cube_to_point[:2], to_goal) / to_goal.norm()).item() == pytest.approx(0.065, abs=1e-4)
    assert cube_to_point[2].item() == pytest.approx(0.08, abs=1e-3)


def test_a_closed_gripper_is_worth_more_than_an_open_one():
    rewards = []
    for width in (0.08, 0.0):
        env = build("push_cube")
        start(env)
        action = stay(env)
        action[:, -1] = width
        rewards.append(env.step(action).reward.item())
    assert rewards[1] - rewards[0] == pytest.approx(0.1, abs=0.02)


def test_a_pushed_object_ends_on_the_disc_without_leaving_the_table():
    steps = solve(build("push_to_goal", object="can"))
    assert steps[-1].success
    assert steps[-1].metrics["final_goal_distance_m"] < 0.03


def test_success_lasts_a_quarter_of_a_second_of_push_to_goal():
    env = build("push_to_goal")
    start(env)
    colour_put(env, "object", (*goal_of(env), 0.025))
    successes = [bool(env.step(hold_still(env)).success) for _ in range(HOLD_STEPS)]
    assert successes == [False] * (HOLD_STEPS - 1) + [True]


def test_an_object_beside_the_disc_does_not_count():
    env = build("push_to_goal")
    start(env)
    x, y = goal_of(env)
    colour_put(env, "object", (x, y + 0.04, 0.025))
    assert not any(env.step(hold_still(env)).success for _ in range(2 * HOLD_STEPS))


def test_lifting_the_object_loses():
    env = build("push_to_goal")
    start(env)
    colour_put(env, "object", (*goal_of(env), 0.025 + 2 * LIFTED_M))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success


def test_an_object_on_its_side_loses():
    env = build("push_to_goal", object="can")
    start(env)
    colour_put(env, "object", (*goal_of(env), 0.031))
    env.backend.qpos[0, env.backend.names.joint_qpos["object/free"]][3:5] = 0.5**0.5
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success


def test_being_at_the_target_counts_only_when_it_lasts():
    env = build("reach")
    conditions = {"robot.joint_position": env.robot.home, "target.position": (0.42238, 0.0, 0.35632)}
    env.reset(torch.tensor([0]), [conditions])
    successes = [bool(env.step(hold_still(env)).success) for _ in range(REACHED_STEPS)]
    assert successes == [False] * (REACHED_STEPS - 1) + [True]


def at_the_target(env) -> None:
    """Start an episode in which the tool is where it is to be."""
    conditions = {"robot.joint_position": env.robot.home, "target.position": (0.42238, 0.0, 0.35632)}
    env.reset(torch.tensor([0]), [conditions])


def test_a_new_episode_counts_its_own_steps_at_the_target():
    env = build("reach")
    at_the_target(env)
    assert not any(env.step(hold_still(env)).success for _ in range(4))
    at_the_target(env)
    successes = [bool(env.step(hold_still(env)).success) for _ in range(5)]
    assert successes == [False] * 4 + [True]


def test_a_new_episode_has_all_of_its_time():
    env = build("reach")
    env.max_episode_length = 6
    away = {"robot.joint_position": env.robot.home, "target.position": (0.5, 0.2, 0.2)}
    for steps in (4, 6):
        env.reset(torch.tensor([0]), [away])
        ended = [bool(env.step(hold_still(env)).truncated) for _ in range(steps)]
        assert ended == [index == 5 for index in range(steps)]


def test_a_tool_beside_the_target_never_counts():
    env = build("reach")
    conditions = {"robot.joint_position": env.robot.home, "target.position": (0.42238, 0.025, 0.35632)}
    env.reset(torch.tensor([0]), [conditions])
    assert not any(env.step(hold_still(env)).success for _ in range(20))


def test_the_reward_is_higher_nearer_to_the_target():
    env = build("reach")
    observation = start(env)
    policy = ScriptedPolicy()
    rewards = []
    for _ in range(5):
        step = env.step(policy.get_action(env, observation))
        observation = step.observation
        rewards.append(step.reward.item())
    assert rewards == sorted(rewards)


def test_the_final_distance_is_reported():
    record = play(build("reach"), ScriptedPolicy(), 1).records[0]
    assert record.metrics["final_distance_m"] < 0.02


def test_a_control_step_is_a_twentieth_of_a_second_of_physics():
    """The first number of the integration state is the time."""
    env = build("reach")
    start(env)
    for number in range(1, 4):
        env.step(hold_still(env))
        assert env.backend.integration_states([0])[0][0] == pytest.approx(0.05 * number)


def sort_two_started():
    env = build("sort_two")
    start(env)
    places = {name: env.backend.body_position(f"{name}/body")[0].tolist() for name in ("left_bin", "right_bin")}
    return env, {name: (x, y, 0.034) for name, (x, y, _) in places.items()}


def test_two_sorted_cubes_are_a_success_and_full_progress():
    record = play(build("sort_two"), ScriptedPolicy(), 1).records[0]
    assert record.success
    assert record.metrics["progress"] == 1.0


def test_one_sorted_cube_is_half_the_progress_and_no_success():
    env, places = sort_two_started()
    colour_put(env, "red", places["left_bin"])
    steps = [env.step(hold_still(env)) for _ in range(2 * SORTED_STEPS)]
    assert steps[-1].metrics["progress"] == 0.5
    assert steps[-1].metrics["progress.red_in_left_bin"] == 1.0
    assert steps[-1].metrics["progress.blue_in_right_bin"] == 0.0
    assert not any(step.success for step in steps)


def test_cubes_in_each_others_bins_are_no_progress():
    env, places = sort_two_started()
    colour_put(env, "red", places["right_bin"])
    colour_put(env, "blue", places["left_bin"])
    steps = [env.step(hold_still(env)) for _ in range(2 * SORTED_STEPS)]
    assert steps[-1].metrics["progress"] == 0.0
    assert not any(step.success for step in steps)


def test_both_in_their_bins_are_a_success():
    env, places = sort_two_started()
    colour_put(env, "red", places["left_bin"])
    colour_put(env, "blue", places["right_bin"])
    assert any(env.step(hold_still(env)).success for _ in range(3 * SORTED_STEPS))


def tower(offset_m: float = 0.0):
    env = build("stack")
    start(env)
    colour_put(env, "blue", (0.5, 0.2, 0.025))
    colour_put(env, "red", (0.5, 0.2 + offset_m, 0.075))
    return env


def test_a_cube_that_was_put_on_the_other_and_let_go_is_stacked():
    steps = solve(build("stack"))
    assert steps[-1].success


def test_a_tower_must_stand_for_half_a_second():
    env = tower()
    successes = [bool(env.step(hold_still(env)).success) for _ in range(STACKED_STEPS + 1)]
    assert any(successes)
    assert not any(successes[: STACKED_STEPS - 1])


def test_a_cube_that_hangs_over_is_no_tower():
    env = tower(offset_m=0.023)
    assert not any(env.step(hold_still(env)).success for _ in range(2 * STACKED_STEPS))


def test_the_blue_cube_on_the_red_one_is_the_wrong_way_round():
    env = tower()
    colour_put(env, "red", (0.5, 0.2, 0.025))
    colour_put(env, "blue", (0.5, 0.2, 0.075))
    assert not any(env.step(hold_still(env)).success for _ in range(2 * STACKED_STEPS))
