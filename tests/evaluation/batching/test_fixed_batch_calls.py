"""A policy on a batch of one size hears of the same episodes, resets and environments as without it."""

from collections.abc import Mapping, Sequence

import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.latency import QUERIES_PER_S, STALE_SHARE, LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import CoinConfig, CoinEnvironment, Notebook
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes

NUM_EPISODES = 9


class Diary(PolicyBase[None]):
    """Writes down what it is told of, without what belongs to the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, object]] = []
        self.seen: list[Environment] = []

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self.seen.append(env)
        self.lines.append(("start", [(start.env_id, start.episode.episode_index) for start in starts]))
        super().start_episodes(env, starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        self.seen.append(env)
        self.lines.append(("end", list(env_ids)))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        self.lines.append(("reset", None if env_ids is None else env_ids.tolist()))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.seen.append(env)
        return torch.zeros(env.num_envs, *env.action_spec.shape)

    def finished(self) -> torch.Tensor | None:
        env = self.seen[-1]
        return torch.arange(env.num_envs) == 1 if len(self.seen) % 7 == 0 else None


def diary(policy_batch: int | None, num_envs: int = 3) -> Diary:
    policy = Diary()
    rollout(CoinEnvironment(CoinConfig(), num_envs), on_fixed_batch(policy, policy_batch), episodes(NUM_EPISODES), [])
    return policy


@pytest.mark.parametrize("policy_batch", [3, 4, 8])
def test_a_policy_is_told_of_the_same_starts_ends_and_resets_as_without_padding(policy_batch):
    plain = diary(None).lines
    assert {kind for kind, _ in plain} == {"start", "end", "reset"}
    assert diary(policy_batch).lines == plain


@pytest.mark.parametrize("env_ids", [None, torch.tensor([2, 0])])
def test_a_reset_is_passed_on_as_it_is(env_ids):
    inner = Diary()
    on_fixed_batch(inner, 8).reset(env_ids)
    assert inner.lines == [("reset", None if env_ids is None else [2, 0])]


class Summing(PolicyBase[None]):
    """Acts by the sum of all it has seen in the episode, so that what is forgotten too late or not at all shows."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.zeros(16, 3)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        self.sum[slice(None) if env_ids is None else env_ids] = 0.0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.sum[: env.num_envs] += observation["policy"]["position"]
        return self.sum[: env.num_envs].clone()


def test_what_an_env_slot_remembers_ends_with_its_episode():
    def actions(num_envs: int, policy_batch: int | None) -> dict[int, torch.Tensor]:
        log = ActionLog()
        environment = ScriptedEnvironment(num_envs, endings=("timeout", "success"))
        rollout(environment, on_fixed_batch(Summing(), policy_batch), episodes(NUM_EPISODES), [log])
        return log.actions

    alone = actions(1, None)
    for num_envs, policy_batch in ((1, 8), (3, 8), (3, 16)):
        together = actions(num_envs, policy_batch)
        assert all(torch.equal(together[index], alone[index]) for index in range(NUM_EPISODES))


class Measuring(Summing):
    """Says what it has summed up, and in which env slot."""

    def episode_metrics(self, env_id: int) -> dict[str, float]:
        return {"sum": float(self.sum[env_id, 0])}


def test_the_numbers_of_the_policy_are_those_of_the_episode_and_stand_beside_those_of_late_answers():
    def measured(policy: PolicyBase) -> dict[int, Mapping[str, float]]:
        notebook = Notebook()
        environment = ScriptedEnvironment(3, endings=("timeout", "success"))
        rollout(environment, policy, episodes(NUM_EPISODES), [notebook])
        return {record.episode.episode_index: record.metrics for record in notebook.records}

    expected = measured(Measuring())
    assert all(numbers["sum"] for numbers in expected.values())
    assert measured(on_fixed_batch(Measuring(), 8)) == expected
    waits, holds = (
        measured(LatePolicy(on_fixed_batch(Measuring(), 8), Delays(steps=((0, 1),)), meanwhile, QueryTimes()))
        for meanwhile in (Meanwhile.WAIT, Meanwhile.CHUNK)
    )
    assert waits == expected
    late = {index: {name: each[name] for name in (STALE_SHARE, QUERIES_PER_S)} for index, each in holds.items()}
    assert holds == {index: {**each, **late[index]} for index, each in expected.items()}


class Named(CoinEnvironment):
    """Has something that the contract does not know."""

    def __init__(self, name: str, num_envs: int) -> None:
        super().__init__(CoinConfig(success_rate=0.0, failure_step=5), num_envs)
        self.who = name


class Reader(Diary):
    """Reads in every call who its environment is, and finishes an episode there after three steps."""

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        clock = observation["policy"]["clock"][:, 0]
        self.lines.append((env.who, (env.num_envs, [int(value) for value in clock[:2]])))  # type: ignore[attr-defined]
        self.latest = env, clock
        return super().get_action(env, observation)

    def finished(self) -> torch.Tensor | None:
        env, clock = self.latest
        return (clock >= 3) & (torch.arange(env.num_envs) < 2)


def test_a_policy_that_goes_on_in_another_environment_sees_that_one_and_nothing_of_the_one_before():
    inner = Reader()
    policy = on_fixed_batch(inner, 8)
    for name, num_envs in (("first", 4), ("second", 2), ("first again", 3)):
        inner.lines.clear()
        notebook = Notebook()
        rollout(Named(name, num_envs), policy, episodes(num_envs), [notebook])
        assert len(notebook.records) == num_envs
        asked = [(kind, told) for kind, told in inner.lines if kind not in {"start", "end", "reset"}]
        assert {kind for kind, _ in asked} == {name}
        assert {told[0] for _, told in asked} == {8}  # type: ignore[index]
        finished = [record.env_id for record in notebook.records if record.termination == "policy_finished"]
        assert sorted(finished) == [0, 1]


def test_one_environment_is_one_and_the_same_from_call_to_call():
    """Policies tell environments apart by identity: a new one each time would have them begin anew each time."""
    assert len({id(env) for env in diary(8).seen}) == 1
