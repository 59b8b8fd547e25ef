import pytest
import torch

from isaaclab_arena.environments.tasks.grasping import REACHED_STEPS
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, play, start


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
