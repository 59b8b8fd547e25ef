"""Hooks and instructions that a job's policy receives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.builds import settle_served_model
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.policy.catalog import function_policy_class
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.storage.ledger import ReportedStatus, Reproducible
from tests.evaluation.jobs import coin_job, config_of, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy, shrugging
from tests.outsiders.test_another_model_behind_the_server import OTHER, Served

# When a policy is asked whether it fits, and when it hears that episodes have ended.


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
    assert str(report.error).startswith("ConfigError: pov_cam_name_sim")
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
        job = config_of("reach", f"{__name__}.Even", policy_config_dict={"number": number})
        return resolve_jobs([job])

    assert resolve(2)
    with pytest.raises(ConfigError, match="number: 3"):
        resolve(3)


@pytest.mark.parametrize(("number", "promise"), [(2, Reproducible.PLAN), (4, Reproducible.BITWISE)])
def test_an_object_may_promise_otherwise_than_its_class(tmp_path, number, promise):
    class Told(Even):
        @classmethod
        def from_dict(cls, config_dict: Any) -> "Told":
            return cls(EvenCfg(number=number))

    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=Told, num_episodes=1))
    assert report.reproducible is promise


# A policy that never reads what its episodes ask for is named, where they ask for different things.


class Speaking(CoinEnvironment):
    """Asks in each episode for a number of its own."""

    def instruction(self, conditions):
        return f"call {conditions['coin.number']}"


class ReadsTask(ShrugPolicy):
    """Reads ``task_description``, as Isaac Lab Arena's policies do."""

    start_episodes = PolicyBase.start_episodes


class Insists(ReadsTask):
    """Follows words of its own."""

    def set_task_description(self, task_description):
        return "do as I say"


class ReadsStart(ShrugPolicy):
    """Reads what an episode asks for when it begins."""

    def start_episodes(self, env, starts):
        assert all(start.language_instruction for start in starts)


class ReadsLater(ShrugPolicy):
    """Reads it when it first acts."""

    def get_action(self, env, observation):
        assert all(start.language_instruction for start in self.starts)
        return super().get_action(env, observation)


replays = shrugging(num_episodes=lambda self: 4)
"""Plays four recorded episodes, whatever they ask for."""


def act(observation):
    return observation["policy"]["clock"].expand(-1, 2)


def remarks(tmp_path, policy_class, builder=None, **config) -> tuple[str, ...]:
    job = coin_job(builder=builder or CoinBuilder(Speaking), policy_class=policy_class, **config)
    report = JobRunner(settings(tmp_path)).run(job)
    assert report.error is None
    return report.remarks


@pytest.mark.parametrize("policy_class", [ReadsTask, function_policy_class(act), ShrugPolicy])
def test_a_policy_that_reads_no_episodes_words_is_named_with_what_it_missed(tmp_path, caplog, policy_class):
    [remark] = remarks(tmp_path, policy_class)
    assert all(
        told in remark for told in (f"policy '{policy_class.__qualname__}'", "'call ", "'call the coin' for all")
    )
    assert caplog.text.count(remark) == 1


@pytest.mark.parametrize(
    "policy_class", [ReadsStart, ReadsLater, Insists, replays, ZeroActionPolicy, RandomActionPolicy]
)
def test_a_policy_that_reads_them_or_follows_no_words_of_theirs_is_not(tmp_path, policy_class):
    assert remarks(tmp_path, policy_class) == ()


def test_nor_is_one_whose_episodes_all_ask_for_the_same(tmp_path):
    assert remarks(tmp_path, ReadsTask, language_instruction="toss it") == ()
    assert remarks(tmp_path / "coins", ReadsTask, builder=CoinBuilder()) == ()


# A stranger's environment and policy may use names for themselves that are offers of this project's classes.


class OwnEnvironment(CoinEnvironment):
    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self.background = "white.png"
        self.metrics = {"distance": []}  # pyright: ignore[reportAttributeAccessIssue]

    def _own(self, path):
        raise AssertionError(f"{path} is of no concern to others")

    # Each is one of two methods that are offered together.
    try_step = restore = snapshot = _own  # pyright: ignore[reportAssignmentType]


class OwnPolicy(ShrugPolicy):
    def __init__(self, config=None) -> None:
        super().__init__(config)
        self.network = torch.nn.Linear(1, 1)
        taken = "planned look chunks chunk_traits connections slots_per_call fill_calls_up_to episode_metrics"
        for name in f"{taken} act_in_some pictures_to_see".split():
            setattr(self, name, [name])


def test_own_attributes_of_any_name_do_not_offer_anything(tmp_path):
    report = JobRunner(settings(tmp_path, pipeline=2)).run(
        coin_job(builder=CoinBuilder(OwnEnvironment), policy_class=OwnPolicy)
    )
    assert (report.status, report.error) == (ReportedStatus.COMPLETED, None)


# Which model the servers of a job serve.


def test_two_servers_of_one_job_must_serve_the_same(tmp_path):
    other = Served()
    other.states = OTHER  # pyright: ignore[reportAttributeAccessIssue]  of this one only
    with pytest.raises(ConfigError, match="different models"):
        settle_served_model(tmp_path, "coins", [Served(), other])
