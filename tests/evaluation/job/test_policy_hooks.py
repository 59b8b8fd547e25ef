"""When a policy is asked whether it fits, and when it hears that episodes have ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.storage.reports import ReportedStatus, Reproducible
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinConfig, CoinEnvironment, ShrugPolicy


class Listener(ShrugPolicy):
    """Writes down in which env slots episodes begin and end, and in how many it acts."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self.heard += [f"start {start.env_id}" for start in starts]

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        self.heard += [f"end {env_id} of {env.num_envs}" for env_id in env_ids]


def episodes(number: int) -> list[Episode]:
    return [Episode(job="coins", episode_index=index, seed=0) for index in range(number)]


@pytest.mark.parametrize(("batch", "seen"), [(None, 2), (8, 8)])
def test_a_policy_hears_of_the_end_of_every_episode_before_the_env_slot_starts_another(batch, seen):
    listener = Listener()
    environment = CoinEnvironment(CoinConfig(success_rate=1.0), 2)
    rollout(environment, on_fixed_batch(listener, batch), episodes(3), [])
    ends = [f"end {env_id} of {seen}" for env_id in (0, 1)]
    assert listener.heard == ["start 0", "start 1", *ends, "start 0", ends[0]]


def test_a_policy_hears_of_episodes_that_take_too_long():
    listener = Listener()
    environment = CoinEnvironment(CoinConfig(success_rate=0.0), 1)
    rollout(environment, listener, episodes(1), [], limits=RolloutLimits(episode_timeout_s=0.0))
    assert listener.heard == ["start 0", "end 0 of 1"]


class Picky(PolicyBase[PolicyCfg]):
    """Acts in no environment, and says so."""

    config_class = PolicyCfg
    num_calls = 0

    def check_environment(self, env: Environment) -> None:
        raise ConfigError(Problem("there is no camera 'front'", key="pov_cam_name_sim"))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        raise AssertionError("it must not be asked")


def test_a_job_whose_policy_does_not_fit_its_environment_fails_before_the_first_step(tmp_path):
    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=Picky))
    assert report.status is ReportedStatus.FAILED
    assert report.error == "ConfigError: pov_cam_name_sim: there is no camera 'front'"
    assert report.env_steps == 0


@dataclass(frozen=True)
class EvenCfg(PolicyCfg):
    number: int = 2


class Even(PolicyBase[EvenCfg]):
    """Takes an even number; says of itself whether it is reproducible."""

    config_class = EvenCfg

    def __init__(self, config: EvenCfg) -> None:
        super().__init__(config)
        self.traits = PolicyTraits(reproducible=config.number > 2)

    @classmethod
    def check_options(cls, config: Any) -> None:
        if config.number % 2:
            raise ConfigError(Problem(f"{config.number} is odd", key="number"))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.zeros(env.num_envs, *env.action_spec.shape)


def test_a_policy_may_refuse_options_that_have_the_right_types():
    def resolve(number: int) -> Any:
        job = JobConfig(
            index=0,
            name="a",
            environment="reach",
            policy_type=f"{__name__}.Even",
            policy_config_dict={"number": number},
            num_episodes=1,
        )
        return resolve_jobs([job])

    assert resolve(2)
    with pytest.raises(ConfigError, match=r"job 'a': policy_config_dict.number: 3 is odd"):
        resolve(3)


@pytest.mark.parametrize(("number", "promise"), [(2, Reproducible.PLAN), (4, Reproducible.BITWISE)])
def test_an_object_may_promise_otherwise_than_its_class(tmp_path, number, promise):
    class Told(Even):
        @classmethod
        def from_dict(cls, config_dict: Any) -> "Told":
            return cls(EvenCfg(number=number))

    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=Told, num_episodes=1))
    assert report.reproducible is promise
