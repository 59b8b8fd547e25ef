"""A policy that never reads what its episodes ask for is named, where they ask for different things."""

import pytest

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.catalog import function_policy_class
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinEnvironment, ShrugPolicy


class Speaking(CoinEnvironment):
    """Asks in each episode for a number of its own."""

    def instruction(self, conditions):
        return f"call {conditions['coin.number']}"


class SpeakingBuilder(CoinBuilder):
    def build(self, config, *, num_envs, device, num_threads):
        return Speaking(config, num_envs)


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


class Replays(ShrugPolicy):
    """Plays four recorded episodes, whatever they ask for."""

    def num_episodes(self):
        return 4


def act(observation):
    return observation["policy"]["clock"].expand(-1, 2)


def remarks(tmp_path, policy_class, builder=None, **config) -> tuple[str, ...]:
    job = coin_job(builder=builder or SpeakingBuilder(), policy_class=policy_class, **config)
    report = JobRunner(settings(tmp_path)).run(job)
    assert report.error is None
    return report.remarks


@pytest.mark.parametrize("policy_class", [ReadsTask, function_policy_class(act), ShrugPolicy])
def test_a_policy_that_reads_no_episodes_words_is_named_with_what_it_missed(tmp_path, caplog, policy_class):
    [remark] = remarks(tmp_path, policy_class)
    assert remark.startswith(f"policy '{policy_class.__qualname__}' never reads what an episode asks for")
    assert "one asks 'call " in remark
    assert "set_task_description said 'call the coin' for all" in remark
    assert caplog.text.count(remark) == 1


@pytest.mark.parametrize(
    "policy_class", [ReadsStart, ReadsLater, Insists, Replays, ZeroActionPolicy, RandomActionPolicy]
)
def test_a_policy_that_reads_them_or_follows_no_words_of_theirs_is_not(tmp_path, policy_class):
    assert remarks(tmp_path, policy_class) == ()


def test_nor_is_one_whose_episodes_all_ask_for_the_same(tmp_path):
    assert remarks(tmp_path, ReadsTask, language_instruction="toss it") == ()
    assert remarks(tmp_path / "coins", ReadsTask, builder=CoinBuilder()) == ()
