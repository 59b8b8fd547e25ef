"""Experts solve tasks of Meta-World, robosuite and LIBERO, in stand-ins and in these packages themselves."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentWrapper
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import (
    CLOSE,
    LIBERO_PLANS,
    OPEN,
    PLANS,
    LiberoExpertPolicy,
    MetaWorldExpertCfg,
    MetaWorldExpertPolicy,
    RobosuiteExpertPolicy,
    expert_action,
)
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena.workers import spare_workers_kept
from tests.environments.gym.gym_running import Trace, build, run
from tests.environments.gym.test_builder import IN_ROBOSUITE
from tests.fakes import CoinConfig, CoinEnvironment
from tests.preloaded.interpreter import preloaded_python

ELSEWHERE = str(Path(__file__).parents[2] / "environments" / "elsewhere")
IN_WORKERS = {"python": preloaded_python(), "environment_variables": {"PYTHONPATH": ELSEWHERE}}


@pytest.mark.parametrize(
    ("policy_class", "says"),
    [
        (MetaWorldExpertPolicy, "metaworld:<task>"),
        (RobosuiteExpertPolicy, "robosuite:Lift, robosuite:Stack, robosuite:PickPlaceCan"),
        (LiberoExpertPolicy, "libero:libero_spatial/"),
    ],
)
def test_an_environment_that_has_no_expert_is_told_with_those_that_have(policy_class, says):
    environment = CoinEnvironment(CoinConfig(), 1)
    observation = environment.reset(torch.tensor([0]), [environment.draw_conditions(np.random.default_rng(0))])
    with pytest.raises(ConfigError, match=says):
        policy_class().get_action(environment, observation)


# Meta-World's own experts act wherever the environment's Meta-World is: here, or in another interpreter alone.


@pytest.fixture
def meta_world_here(monkeypatch):
    """Put the stand-in where this process finds it, and take it out again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "metaworld"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(ELSEWHERE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "metaworld"]:
        del sys.modules[name]


class LeftOpen(EnvironmentWrapper):
    """An environment whose worker processes stay when a test closes it, for the next test."""

    def reset(self, env_ids, conditions):
        return self.real.reset(env_ids, conditions)

    def step(self, action):
        return self.real.step(action)


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[int, Environment]]:
    """Return an environment for each number of env slots that a test has asked for."""
    environments: dict[int, Environment] = {}
    yield environments
    for environment in environments.values():
        environment.close()


class TestMetaWorld(PolicyConformance):
    policy_class = MetaWorldExpertPolicy

    @pytest.fixture(autouse=True)
    def share_workers(self, workers):
        self.workers = workers

    def make_environment(self, num_envs: int) -> Environment:
        if num_envs not in self.workers:
            self.workers[num_envs] = build("metaworld:reach-v3", num_envs=num_envs, **IN_WORKERS)
        return LeftOpen(self.workers[num_envs])


def test_meta_worlds_expert_does_the_same_here_and_in_workers(meta_world_here):
    here, there = Trace(), Trace()
    records = run("metaworld:reach-v3", num_envs=2, policy=MetaWorldExpertPolicy(), observer=here)
    run("metaworld:reach-v3", num_envs=1, policy=MetaWorldExpertPolicy(), observer=there, **IN_WORKERS)
    assert {record.outcome for record in records.values()} == {Outcome.SUCCESS}
    assert here.steps == there.steps


@pytest.mark.parametrize("how", [{}, IN_WORKERS], ids=["here", "in workers"])
def test_an_expert_for_another_task_is_told_with_those_that_exist(meta_world_here, how):
    with pytest.raises(ConfigError, match=r"task: .*'push-v3'"):
        run("metaworld:reach-v3", policy=MetaWorldExpertPolicy(MetaWorldExpertCfg(task="push-v3")), **how)


def test_an_expert_can_be_asked_after_all_workers_were_lost():
    environment = build("metaworld:reach-v3", **IN_WORKERS)
    environment.close()
    asked = environment.expert_actions("reach-v3", np.full((2, 39), 0.5, np.float32))
    assert asked.tolist() == [[0.5] * 4] * 2
    environment.close()


@pytest.mark.parametrize("task", ["reach-v3", "door-open-v3", "drawer-close-v3", "pick-place-v3"])
def test_the_expert_plays_meta_worlds_task_with_the_same_bits_for_any_number_of_env_slots(task):
    pytest.importorskip("metaworld", reason="Meta-World is not installed; docs/how_to/metaworld.md says how")
    traces, records = [Trace(), Trace()], {}
    for num_envs, trace in zip((1, 4), traces, strict=True):
        records = run(f"metaworld:{task}", num_envs=num_envs, policy=MetaWorldExpertPolicy(), observer=trace)
    assert traces[0].steps == traces[1].steps
    assert len({steps[0] for steps in traces[0].steps.values()}) == len(records) == 6
    assert task == "pick-place-v3" or {record.outcome for record in records.values()} == {Outcome.SUCCESS}


# Experts for robosuite pick what their task is about and put it where it belongs.


@pytest.fixture(scope="module", autouse=True)
def _workers_are_used_again():
    with spare_workers_kept():
        yield


class TestRobosuite(PolicyConformance):
    policy_class = RobosuiteExpertPolicy

    def make_environment(self, num_envs: int) -> Environment:
        return build("robosuite:Lift", num_envs=num_envs, enable_cameras=True, **IN_ROBOSUITE)


@pytest.mark.parametrize("task", PLANS)
def test_the_expert_solves_its_task_in_a_stand_in_for_robosuite(task):
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


def test_robots_with_other_actions_are_told():
    environment = build("robosuite:Lift", robots=("Panda", "Panda"), **IN_ROBOSUITE)
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    with pytest.raises(ConfigError, match="'Lift' takes 14"):
        RobosuiteExpertPolicy().get_action(environment, observation)
    environment.close()


# The expert for LIBERO takes a bowl by its rim and carries its middle to the plate.

(PLAN,) = LIBERO_PLANS.values()
BOWL = np.array([-0.05, 0.2, 0.9])
UP = np.array([0.0, 0.0, 0.033])
FAR = np.array([0.1, 0.0, 0.0])


def towards(gripper: np.ndarray, *, opening: float, plate: np.ndarray) -> np.ndarray:
    seen = {
        "robot0_eef_pos": gripper,
        "robot0_eef_quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "robot0_gripper_qpos": np.array([opening / 2, -opening / 2]),
        "robot0_gripper_qvel": np.zeros(2),
        "akita_black_bowl_1_pos": BOWL,
        "akita_black_bowl_1_quat": np.array([0.0, 0.0, 0.0, 1.0]),
        "plate_1_pos": plate,
    }
    return expert_action(PLAN, seen)


def test_fingers_go_to_the_rim_of_the_bowl_and_close_there_and_carry_it_to_the_plate():
    above = towards(BOWL + UP, opening=0.08, plate=BOWL + FAR)
    assert above[1] < 0 < above[2]
    assert above[6] == OPEN
    held = BOWL + PLAN.grip
    around = towards(held, opening=0.08, plate=BOWL + FAR)
    assert np.allclose(around[:6], 0.0, atol=1e-5)
    assert around[6] == CLOSE
    lifted = towards(held, opening=0.004, plate=BOWL + FAR - UP)
    assert (lifted[0], lifted[1], lifted[2], lifted[6]) == (0.0, 0.0, 1.0, CLOSE)
    carried = towards(held, opening=0.004, plate=BOWL + FAR - 4 * UP)
    assert (carried[0], carried[1], carried[6]) == (1.0, 0.0, CLOSE)
    assert towards(held, opening=0.004, plate=BOWL - PLAN.place)[6] == OPEN


LIBERO, ROBOSUITE = (os.environ.get(f"{name}_PYTHON", "") for name in ("LIBERO", "ROBOSUITE"))


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("environment", "policy_class", "num_episodes", "python"),
    [
        *((f"libero:libero_spatial/{task}", LiberoExpertPolicy, 2, LIBERO) for task in LIBERO_PLANS),
        *((f"robosuite:{task}", RobosuiteExpertPolicy, 3, ROBOSUITE) for task in PLANS),
    ],
)
def test_the_expert_solves_its_task_in_the_package_itself(environment, policy_class, num_episodes, python):
    if not python:
        pytest.skip("an interpreter is missing: make test-benchmarks makes it")
    records = run(environment, num_episodes=num_episodes, policy=policy_class(), python=python)
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * num_episodes
