"""Env slots divided into groups: the same episodes, while the policy acts for one group and another is simulated."""

import threading
import time

import pytest

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment_builder import Background
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.interfaces.observer import Observer
from tests.evaluation.rollout.test_rollout import episodes, toss
from tests.fakes import CoinConfig, CoinEnvironment, Notebook, ShrugPolicy, SurePolicy, shrugging
from tests.fakes_environment import groups_of

SOON_S = 20.0
"""Longer than anything here takes, and short enough for a test that would otherwise hang."""


def coin_groups(*sizes: int, config: CoinConfig | None = None, policies=None) -> list[EnvGroup]:
    policies = policies or [ShrugPolicy() for _ in sizes]
    return [
        EnvGroup(environment=CoinEnvironment(config or CoinConfig(), size), policy=policy)
        for size, policy in zip(sizes, policies, strict=True)
    ]


@pytest.mark.parametrize("sizes", [(4, 3), (2, 2, 2)])
def test_every_planned_episode_runs_exactly_once_in_whichever_group(sizes):
    notebook = Notebook()
    result = pipelined_rollout(coin_groups(*sizes), episodes(20), [notebook])
    assert sorted(record.episode.episode_index for record in notebook.records) == list(range(20))
    assert sum(bool(record.success) for record in notebook.records) == sum(toss(index) for index in range(20))
    assert (result.finished_episodes, result.cut_episodes) == (20, 0)
    num_steps = sum(transition.num_running for transition in notebook.transitions)
    assert num_steps == sum(record.length for record in notebook.records)


def test_the_policy_acts_for_one_group_while_another_is_simulated():
    simulating, acted = threading.Semaphore(0), threading.Semaphore(0)

    class MeetsThePolicy(CoinEnvironment):
        def step(self, action):
            simulating.release()
            assert acted.acquire(timeout=SOON_S), "the policy did not act while this was simulated"
            return super().step(action)

    def meet_the_simulation(*_) -> None:
        assert simulating.acquire(timeout=SOON_S), "nothing was simulated while the policy acted"
        acted.release()

    config, policy = CoinConfig(success_rate=0.0, failure_step=5), shrugging(meet_the_simulation)()
    groups = [
        EnvGroup(environment=MeetsThePolicy(config, 1), policy=ShrugPolicy()),
        EnvGroup(environment=CoinEnvironment(config, 1), policy=policy),
    ]
    assert pipelined_rollout(groups, episodes(2), []).finished_episodes == 2
    assert policy.num_calls == 5


def test_groups_take_turns_in_a_fixed_order():
    order = []

    class Order(Observer):
        def on_step(self, environment, transition) -> None:
            order.append(environments.index(environment))

    environments = [Slow(CoinConfig(success_rate=0.0, failure_step=3), 1), CoinEnvironment(CoinConfig(), 1)]
    environments[0].pause_s = 0.02
    pipelined_rollout(groups_of(environments, SurePolicy), episodes(2), [Order()])
    assert order[:4] == [0, 1, 0, 1]


class Explodes(CoinEnvironment):
    def step(self, action):
        raise RuntimeError("the table fell over")


class Slow(CoinEnvironment):
    is_stepping = False
    pause_s = 0.2

    def step(self, action):
        self.is_stepping = True
        time.sleep(self.pause_s)
        self.is_stepping = False
        return super().step(action)


def test_what_a_step_raises_ends_the_rollout_when_no_other_step_is_under_way():
    slow = Slow(CoinConfig(), 2)
    groups = groups_of((Explodes(CoinConfig(), 2), slow), ShrugPolicy)
    with pytest.raises(RuntimeError, match="the table fell over"):
        pipelined_rollout(groups, episodes(9), [])
    assert not slow.is_stepping
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("simulation")]


class Elsewhere(CoinEnvironment, Background):
    """Says that its steps are made in another process."""

    num_begun = num_finished = 0

    @property
    def background(self) -> Background:
        return self

    def begin_step(self, action) -> None:
        self.num_begun += 1
        self._action = action

    def finish_step(self):
        self.num_finished += 1
        return CoinEnvironment.step(self, self._action)


@pytest.mark.parametrize("policy", [ShrugPolicy, SurePolicy])
def test_steps_that_are_made_elsewhere_need_no_thread(policy):
    class Counts(Observer):
        def on_step(self, environment, transition) -> None:
            threads.update(thread.name for thread in threading.enumerate())

    notebook, threads = Notebook(), set()
    groups = groups_of((Elsewhere(CoinConfig(), size) for size in (4, 3)), policy)
    pipelined_rollout(groups, episodes(20), [notebook, Counts()])
    assert sorted(record.episode.episode_index for record in notebook.records) == list(range(20))
    assert sum(bool(record.success) for record in notebook.records) == sum(toss(index) for index in range(20))
    assert not [name for name in threads if name.startswith("simulation")]


def test_what_was_begun_elsewhere_is_finished_when_another_step_raises():
    class Falls(Elsewhere):
        def finish_step(self):
            raise RuntimeError("the table fell over")

    other = Elsewhere(CoinConfig(), 1)
    groups = groups_of((Falls(CoinConfig(), 1), other), ShrugPolicy)
    with pytest.raises(RuntimeError, match="the table fell over"):
        pipelined_rollout(groups, episodes(9), [])
    assert other.num_begun == other.num_finished == 1


class Lost(ShrugPolicy):
    def get_action(self, env, observation):
        if self.num_calls == 7:
            raise PolicyLostError("nobody answers")
        return super().get_action(env, observation)


def test_episodes_of_all_groups_are_errors_when_the_policy_of_one_is_lost():
    notebook = Notebook()
    with pytest.raises(PolicyLostError):
        pipelined_rollout(coin_groups(1, 1, policies=[ShrugPolicy(), Lost()]), episodes(5), [notebook])
    assert [(record.outcome, record.termination) for record in notebook.records] == [(Outcome.ERROR, "policy_lost")] * 2
    # The step that the first group was making is given up.
    assert [record.length for record in notebook.records] == [7, 7]


def test_steps_under_way_at_a_stop_request_are_finished_and_observed():
    asked = iter([False] * 7 + [True])
    notebook = Notebook()
    result = pipelined_rollout(coin_groups(1, 1), episodes(5), [notebook], stop_requested=lambda: next(asked))
    assert result.interrupted
    assert [transition.num_running for transition in notebook.transitions] == [1] * 7
    assert result.cut_episodes == 2


def test_env_slots_that_may_be_used_are_shared_among_the_groups():
    used, groups = set(), coin_groups(4, 4)
    ended = {"on_episode_end": lambda _, environment, record: used.add((environment, record.env_id))}
    slots = type("Slots", (Observer,), ended)()
    pipelined_rollout(groups, episodes(20), [slots], limits=RolloutLimits(max_envs=3))
    assert used == {(groups[0].environment, 0), (groups[0].environment, 1), (groups[1].environment, 0)}
