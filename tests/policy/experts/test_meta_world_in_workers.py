"""The expert acts wherever the environment's Meta-World is: here, or in another interpreter alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentWrapper
from isaaclab_arena.policy.scripted import MetaWorldExpertCfg, MetaWorldExpertPolicy
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.environments.gym.gym_running import Trace, build, run
from tests.fakes import CoinConfig, CoinEnvironment
from tests.preloaded.interpreter import preloaded_python

ELSEWHERE = str(Path(__file__).parents[2] / "environments" / "elsewhere")
IN_WORKERS = {"python": preloaded_python(), "environment_variables": {"PYTHONPATH": ELSEWHERE}}


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


class TestConformance(PolicyConformance):
    policy_class = MetaWorldExpertPolicy

    @pytest.fixture(autouse=True)
    def share_workers(self, workers):
        self.workers = workers

    def make_environment(self, num_envs: int) -> Environment:
        if num_envs not in self.workers:
            self.workers[num_envs] = build("metaworld:reach-v3", num_envs=num_envs, **IN_WORKERS)
        return LeftOpen(self.workers[num_envs])


def test_here_and_in_workers_it_does_the_same(meta_world_here):
    here, there = Trace(), Trace()
    run("metaworld:reach-v3", num_envs=2, policy=MetaWorldExpertPolicy(), observer=here)
    run("metaworld:reach-v3", num_envs=1, policy=MetaWorldExpertPolicy(), observer=there, **IN_WORKERS)
    assert here.steps == there.steps


def test_an_expert_for_another_task_is_told_with_those_that_exist(meta_world_here):
    policy = MetaWorldExpertPolicy(MetaWorldExpertCfg(task="reach-v2"))
    with pytest.raises(ConfigError, match=r"task: .*'reach-v2'; .* reach-v3"):
        run("metaworld:reach-v3", policy=policy)


def test_an_expert_can_be_asked_after_all_workers_were_lost():
    environment = build("metaworld:reach-v3", **IN_WORKERS)
    environment.close()
    asked = environment.expert_actions("reach-v3", np.full((2, 39), 0.5, np.float32))
    assert asked.tolist() == [[0.5] * 4] * 2
    environment.close()


def test_an_environment_that_has_no_experts_is_told():
    environment = CoinEnvironment(CoinConfig(), 1)
    with pytest.raises(ConfigError, match="metaworld:<task>"):
        MetaWorldExpertPolicy().get_action(environment, {})
