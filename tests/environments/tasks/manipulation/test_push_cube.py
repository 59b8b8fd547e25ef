import math

import pytest
import torch

from isaaclab_arena.environments.tasks.pushing import CUBE_TOLERANCE_M, FARTHEST_GOAL_M, HOLD_STEPS, NEAREST_GOAL_M
from isaaclab_arena.interfaces.episode import point
from tests.environments.building import build, episode, start
from tests.environments.moving import put, solve


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
    put(env, "object", (*goal_of(env), 0.025))
    successes = [bool(env.step(stay(env)).success) for _ in range(HOLD_STEPS)]
    assert successes == [False] * (HOLD_STEPS - 1) + [True]


def test_a_cube_beside_the_disc_does_not_count():
    env = build("push_cube")
    start(env)
    x, y = goal_of(env)
    put(env, "object", (x, y + CUBE_TOLERANCE_M + 0.01, 0.025))
    assert not any(env.step(stay(env)).success for _ in range(2 * HOLD_STEPS))


def test_a_cube_that_falls_off_the_table_is_lost():
    env = build("push_cube")
    start(env)
    put(env, "object", (0.5, 0.8, -0.1))
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
        put(env, "object", (x, y + away, 0.025))
        rewards.append(env.step(stay(env)).reward.item())
    assert rewards == sorted(rewards)
    assert len(set(rewards)) == len(rewards)


def test_a_hand_that_is_not_behind_the_cube_is_led_above_the_place_from_which_it_can_come_down():
    env = build("push_cube")
    policy = start(env)["policy"]
    x, y, _ = policy["eef_pos"][0].tolist()
    put(env, "object", (x, y, 0.025))
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
