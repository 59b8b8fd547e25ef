import math

import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.tasks.walk_humanoid import LOWEST_M, ROOT, SHARE_OF_THE_WAY
from isaaclab_arena.interfaces.environment import Step
from tests.environments.building import build_on_the_floor, episode

YAW = 0.5


def started(num_envs: int = 1, speed: float = 0.8) -> FloorEnvironment:
    env = build_on_the_floor("walk_humanoid", num_envs=num_envs)
    conditions = {
        **env.draw_conditions(episode(0).conditions_generator()),
        "command.speed": speed,
        "robot.yaw": YAW,
        "robot.joint_position": env.robot.default_joint_position,
    }
    env.reset(torch.arange(num_envs), [conditions] * num_envs)
    return env


def carry(env: FloorEnvironment, distance_m: float, direction: float = YAW) -> None:
    """Put the robot somewhere else, standing as it stands."""
    root = env.backend.joint_position(ROOT)
    root[0, 0] = distance_m * math.cos(direction)
    root[0, 1] = distance_m * math.sin(direction)


def last_step(env: FloorEnvironment) -> Step:
    """Make the step with which the time is up."""
    env._length[:] = env.max_episode_length - 1
    env.task.memory()["_length"][:] = env.max_episode_length - 1
    return env.step(torch.zeros(env.num_envs, 21))


def test_standing_still_is_no_success():
    env = started()
    env.step(torch.zeros(1, 21))
    step = last_step(env)
    assert step.truncated
    assert not step.success
    assert step.metrics["distance_m"].abs() < 0.05


@pytest.mark.parametrize(("share", "succeeds"), [(SHARE_OF_THE_WAY - 0.01, False), (SHARE_OF_THE_WAY + 0.01, True)])
def test_most_of_the_asked_way_straight_ahead_is_a_success(share, succeeds):
    env = started(speed=0.8)
    carry(env, share * 8.0)
    step = last_step(env)
    assert bool(step.success) is succeeds
    assert step.metrics["distance_m"].item() == pytest.approx(share * 8.0, abs=0.02)


def test_success_comes_only_when_the_time_is_up():
    env = started()
    carry(env, 8.0)
    assert not env.step(torch.zeros(1, 21)).success
    assert last_step(env).success


def test_a_way_to_the_side_does_not_count():
    env = started()
    carry(env, 8.0, YAW + math.pi / 2)
    assert not last_step(env).success


def test_falling_loses():
    env = started(2)
    root = env.backend.joint_position(ROOT)
    root[0, 2] = LOWEST_M - 0.1
    root[1, 3:7] = torch.tensor([math.cos(0.6), 0.0, math.sin(0.6), 0.0])
    step = env.step(torch.zeros(2, 21))
    assert step.terminated.tolist() == [True, True]
    assert not solved_any(step)


def solved_any(step: Step) -> bool:
    assert step.success is not None
    return bool(step.success.any())


def test_the_reward_is_best_at_the_asked_speed():
    rewards = []
    for speed in (0.0, 0.4, 0.8):
        env = started(speed=0.8)
        env.step(torch.zeros(1, 21))
        env.backend.joint_velocity(ROOT)[0, :2] = speed * torch.tensor([math.cos(YAW), math.sin(YAW)])
        rewards.append(env.task.judge(env.backend, torch.tensor([True])).reward.item())
    assert rewards == sorted(rewards)
    assert rewards[0] < rewards[-1]


def test_it_observes_where_it_looks_from_where_it_began():
    env = started()
    half = (YAW + 0.3) / 2
    env.backend.joint_position(ROOT)[0, 3:7] = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])
    observed = env.step(torch.zeros(1, 21)).observation["policy"]["heading_error"][0]
    assert observed.tolist() == pytest.approx([math.cos(0.3), math.sin(0.3)], abs=0.01)


def test_the_clock_goes_round_in_the_gait_s_period_and_starts_anew_with_an_episode():
    env = started()
    hands = [env.step(torch.zeros(1, 21)).observation["policy"]["gait_clock"][0] for _ in range(40)]
    assert hands[19].tolist() == pytest.approx([-1.0, 0.0], abs=1e-6)
    assert hands[39].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    env.step(torch.zeros(1, 21))
    again = env.reset(torch.tensor([0]), [env.draw_conditions(episode(1).conditions_generator())])
    assert again["policy"]["gait_clock"][0].tolist() == [1.0, 0.0]
