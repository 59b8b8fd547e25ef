"""Calls of a policy that have one batch size."""

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.batching import FixedBatchPolicy, WideView, batch_of, on_fixed_batch, padded
from isaaclab_arena.evaluation.latency import QUERIES_PER_S, STALE_SHARE, LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.environments.building import build
from tests.fakes import CoinConfig, CoinEnvironment, Notebook, ShrugPolicy
from tests.fakes_environment import ScriptedEnvironment, episodes

# A policy that is always asked on a batch of one size gives the same bits for any number of environments.


def test_the_policy_sees_one_environment_of_the_fixed_size():
    """Policies tell environments apart by identity: a new one each time would have them begin anew each time."""

    class Curious(ShrugPolicy):
        def get_action(self, env, observation):
            environments.append(env)
            assert {term.shape for term in observation["policy"].values()} == {(8, 1)}
            assert float(observation["policy"]["clock"][3:].sum()) == 0.0
            action = torch.zeros(env.unwrapped.action_space.shape)
            # NaN behind the real env slots is of no concern.
            action[3:] = torch.nan
            return action

    environments, notebook = [], Notebook()
    rollout(CoinEnvironment(CoinConfig(), 3), FixedBatchPolicy(Curious(), 8), episodes(9), [notebook])
    assert len(notebook.records) == 9
    assert len({id(environment) for environment in environments}) == 1
    assert environments[0].num_envs == 8
    assert {transition.action.shape for transition in notebook.transitions} == {(3, 2)}


def test_what_the_policy_says_of_itself_is_passed_on():
    said = {"has_length": True, "length": 7, "num_episodes": 5}
    methods = {name: lambda self, answer=answer: answer for name, answer in said.items()}
    asked = {"can_play": lambda self, index: index < 5, "set_task_description": lambda self, words: f"gently {words}"}
    inner = type("Long", (ShrugPolicy,), {**methods, **asked, "is_remote": True})()
    policy = FixedBatchPolicy(inner, 8)
    assert {name: getattr(policy, name)() for name in said} == said
    assert (policy.can_play(4), policy.can_play(5), policy.is_remote) == (True, False, True)
    assert policy.set_task_description("push") == "gently push"
    policy.close()
    assert inner.closed


def test_a_policy_may_look_at_the_environment_but_not_act_on_it():
    real = CoinEnvironment(CoinConfig(), 3)
    view = WideView(real, 8)
    assert view.num_draws == 0
    assert view.state()["rigid_object"]["coin"]["root_pose"].shape == (8, 7)
    assert view.action_space.shape == (8, 2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = view.no_such_thing
    with pytest.raises(PolicyError, match="must not step"):
        view.step(torch.zeros(8, 2))
    with pytest.raises(PolicyError, match="must not reset"):
        view.reset(torch.tensor([0]), [{}])


def test_a_view_of_a_simulation_shows_the_simulation_and_so_does_its_copy():
    real = build("reach", num_envs=2)
    view = WideView(real, 8)
    for name in ("backend", "robot", "task_name", "restore", "episode_states", "filmable", "pictures_drawn"):
        assert getattr(copy.copy(view), name) == getattr(view, name) == getattr(real, name)
    assert not hasattr(WideView(CoinEnvironment(CoinConfig(), 2), 8), "backend")
    real.close()


def test_padding_gives_every_tensor_one_layout_and_memory_of_its_own():
    pictures = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 3, 4).permute(0, 3, 1, 2)
    tree = {"policy": {"a": torch.ones(2, 3)}, "camera_obs": {"front": pictures.expand(2, -1, -1, -1)}, "note": "x"}
    for num_envs in (2, 5):
        wide = padded(tree, num_envs)
        assert wide["note"] == "x"
        assert wide["camera_obs"]["front"].is_contiguous()
        assert torch.equal(wide["camera_obs"]["front"][:2], tree["camera_obs"]["front"])
        assert not wide["policy"]["a"][2:].any()
        wide["policy"]["a"].fill_(7.0)
    assert torch.equal(tree["policy"]["a"], torch.ones(2, 3))


def test_a_batch_smaller_than_the_job_is_refused():
    assert batch_of(ShrugPolicy.traits, 64, num_envs=64) == 64
    with pytest.raises(ConfigError, match="--policy_batch 16"):
        batch_of(ShrugPolicy.traits, 8, num_envs=16)


# A policy on a batch of one size hears of the same episodes, resets and environments as without it.


CALLS_NUM_EPISODES = 9


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
    rollout(
        CoinEnvironment(CoinConfig(), num_envs), on_fixed_batch(policy, policy_batch), episodes(CALLS_NUM_EPISODES), []
    )
    return policy


@pytest.mark.parametrize("policy_batch", [3, 4, 8])
def test_a_policy_is_told_of_the_same_starts_ends_and_resets_as_without_padding(policy_batch):
    plain = diary(None).lines
    assert {kind for kind, _ in plain} == {"start", "end", "reset"}
    assert diary(policy_batch).lines == plain


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


class Measuring(Summing):
    """Says what it has summed up, and in which env slot."""

    def episode_metrics(self, env_id: int) -> dict[str, float]:
        return {"sum": float(self.sum[env_id, 0])}


def test_the_numbers_of_the_policy_are_those_of_the_episode_and_stand_beside_those_of_late_answers():
    def measured(policy: PolicyBase) -> dict[int, Mapping[str, float]]:
        notebook = Notebook()
        environment = ScriptedEnvironment(3, endings=("timeout", "success"))
        rollout(environment, policy, episodes(CALLS_NUM_EPISODES), [notebook])
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
