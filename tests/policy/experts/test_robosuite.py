"""Experts pick what their task is about and put it where it belongs, in a stand-in for robosuite."""

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import OPEN, PLANS, RobosuiteExpertPolicy, expert_action
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena.workers import spare_workers_kept
from tests.environments.gym.gym_running import build, run
from tests.environments.gym.test_builder import IN_ROBOSUITE
from tests.fakes import CoinConfig, CoinEnvironment


@pytest.fixture(scope="module", autouse=True)
def _workers_are_used_again():
    with spare_workers_kept():
        yield


class TestConformance(PolicyConformance):
    policy_class = RobosuiteExpertPolicy

    def make_environment(self, num_envs: int) -> Environment:
        return build("robosuite:Lift", num_envs=num_envs, enable_cameras=True, **IN_ROBOSUITE)


@pytest.mark.parametrize("task", PLANS)
def test_the_expert_solves_its_task(task):
    records = run(f"robosuite:{task}", num_envs=2, num_episodes=2, policy=RobosuiteExpertPolicy(), **IN_ROBOSUITE)
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * 2


def test_fingers_open_above_the_thing_and_turn_to_the_nearest_side():
    def turned(yaw: float) -> np.ndarray:
        place, down = np.array([0.01, 0.0, 0.82]), np.array([1.0, 0.0, 0.0, 0.0])
        seen = {"robot0_eef_pos": place + np.array([0.0, 0.0, 0.06]), "robot0_eef_quat": down, "cube_pos": place}
        fingers = {"robot0_gripper_qpos": np.zeros(2), "robot0_gripper_qvel": np.zeros(2)}
        cube_quat = np.array([0.0, 0.0, np.sin(yaw / 2), np.cos(yaw / 2)])
        return expert_action(PLANS["Lift"], {**seen, **fingers, "cube_quat": cube_quat})

    action = turned(0.4)
    assert action[2] >= 0.0
    assert action[5] == pytest.approx(1.0)
    assert action[6] == OPEN
    assert turned(np.pi / 2)[5] == pytest.approx(0.0, abs=1e-6)


def test_an_environment_that_has_no_expert_is_told():
    environment = CoinEnvironment(CoinConfig(), 1)
    observation = environment.reset(torch.tensor([0]), [environment.draw_conditions(np.random.default_rng(0))])
    with pytest.raises(ConfigError, match="robosuite:Lift, robosuite:Stack, robosuite:PickPlaceCan"):
        RobosuiteExpertPolicy().get_action(environment, observation)


def test_robots_with_other_actions_are_told():
    environment = build("robosuite:Lift", robots=("Panda", "Panda"), **IN_ROBOSUITE)
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    with pytest.raises(ConfigError, match="'Lift' takes 14"):
        RobosuiteExpertPolicy().get_action(environment, observation)
    environment.close()
