"""Answers of a policy: shape, saturation, and soundness."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import checked_answer, unsound_slots
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import CAMERAS_OFF, ArraySpec, SideBySide
from tests.fakes import CoinConfig, CoinEnvironment, Notebook, ShrugPolicy
from tests.fakes_environment import ActionLog, BoldPolicy, ScriptedEnvironment, episodes

RUNNING = torch.tensor([True, True, False])


class Answers(ShrugPolicy):
    """Answers what it is given, whatever it is."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.answer


def checked(action: object) -> torch.Tensor:
    return checked_answer(Answers(action), CoinEnvironment(CoinConfig(), 3), {}, RUNNING).action


@pytest.mark.parametrize(
    "action",
    [
        torch.ones(3, 2, dtype=torch.float64),
        torch.ones(3, 2, dtype=torch.bool),
        torch.ones(3, 2, requires_grad=True),
        torch.ones(2, 3).T,
        np.ones((3, 2)),
        np.ones((3, 2), ">f4"),
        np.ones((2, 3))[::-1].T,
    ],
)
def test_an_action_of_another_kind_becomes_float32_without_a_gradient(action):
    taken = checked(action)
    assert torch.equal(taken, torch.ones(3, 2))
    assert taken.dtype == torch.float32
    assert not taken.requires_grad


class Reads(ShrugPolicy):
    """Does something with what it is shown, before it answers."""

    def __init__(self, read: Callable[[Observation], object]) -> None:
        super().__init__()
        self.read = read

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.read(observation)
        return torch.zeros(3, 2)


SHOWN = {"policy": {"coin": torch.zeros(3, 1), "purse": torch.zeros(3, 2)}}


@pytest.mark.parametrize(
    ("read", "missing"),
    [
        (lambda shown: shown["camera_obs"]["front"], "camera_obs"),
        (lambda shown: shown["policy"]["coins"], "coins"),
        (lambda shown: shown["coin"], "coin"),
    ],
)
def test_a_policy_that_looks_for_what_is_not_observed_is_told_what_is(read, missing):
    with pytest.raises(PolicyError, match=f"'{missing}'; .* policy: coin, purse") as raised:
        checked_answer(Reads(read), CoinEnvironment(CoinConfig(), 3), SHOWN, RUNNING)
    assert CAMERAS_OFF in str(raised.value)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (np.full((3, 2), "left"), "<U4"),
        (np.zeros((3, 2), np.complex64), "complex64"),
        (None, "NoneType"),
        (torch.zeros(3), r"\(3,\), the environment takes \(3, 2\)"),
        (torch.zeros(3, 4, 2), r"\(3, 4, 2\)"),
        (torch.full((3, 2), float("inf")), "env slot 0"),
        (torch.tensor([[0.0, 0.0], [0.0, float("nan")], [0.0, 0.0]]), "env slot 1"),
        (torch.full((3, 2), 1e39, dtype=torch.float64), "env slot 0"),
        (torch.zeros(3, 2, dtype=torch.complex64), "real numbers"),
    ],
)
def test_an_action_that_cannot_be_meant_is_the_policys_error(action, told):
    with pytest.raises(PolicyError, match=told):
        checked(action)


def test_what_is_out_of_bounds_or_in_a_resting_env_slot_is_left_as_it_is():
    action = torch.full((3, 2), 9.0)
    action[2] = torch.nan
    assert torch.equal(checked(action)[:2], action[:2])


class Same(PolicyBase[None]):
    """Answers the same in every step."""

    def __init__(self, *action: float) -> None:
        super().__init__()
        self.action = action

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.tensor([self.action]).repeat(env.num_envs, 1)


def played(environment: Environment, policy: PolicyBase, number: int = 24, *more: Observer) -> dict[int, EpisodeRecord]:
    """Play some episodes, and return their records."""
    notebook = Notebook()
    rollout(environment, policy, episodes(number), [notebook, *more])
    return {record.episode.episode_index: record for record in notebook.records}


def shares(environment: Environment, policy: PolicyBase, number: int = 10, *more: Observer) -> dict[int, float | None]:
    found = played(environment, policy, number, *more)
    return {index: record.saturated_action_share for index, record in found.items()}


INF = float("inf")


@pytest.mark.parametrize(
    ("low", "high", "action", "share"),
    [
        ((-1.0,) * 3, (2.0,) * 3, (0.0, 0.0, 0.0), 0.0),
        ((-1.0,) * 3, (2.0,) * 3, (-1.0, 0.0, 2.0), 2 / 3),
        ((-1.0,) * 3, (2.0,) * 3, (-7.0, 9.0, 1.99), 2 / 3),
        # What single precision makes of a bound is that bound.
        ((-1.0,) * 3, (2.0,) * 3, (2 - 2e-7, -1 + 1e-7, 0.0), 2 / 3),
        # Entries without a bound, and those with one value, do not count.
        (None, None, (5.0, 5.0, 5.0), None),
        ((-INF, 5.0, -INF), (INF, 5.0, INF), (5.0, 5.0, 5.0), None),
        (None, (INF, 1.0, 9.0), (5.0, 5.0, 5.0), 0.5),
        ((5.0, -INF, 0.0), (INF, 1.0, 9.0), (5.0, 5.0, 5.0), 2 / 3),
        # A bound of zero and one far from zero do.
        ((0.0, 1000.0, -INF), (INF, 1000.001, 1e6), (0.0, 1000.0, 1e6), 1.0),
        ((0.0, 1000.0, -INF), (INF, 1000.001, 1e6), (0.1, 1000.0005, 1e5), 0.0),
    ],
)
def test_an_entry_counts_by_the_bounds_that_it_has(low, high, action, share):
    environment = ScriptedEnvironment(2)
    environment.action_spec = ArraySpec(shape=(3,), low=low, high=high)
    assert set(shares(environment, Same(*action)).values()) == {share}


def test_an_episode_has_the_share_of_its_own_steps():
    log = ActionLog()
    found = shares(ScriptedEnvironment(4), BoldPolicy(), 40, log)
    expected = {index: float(((action <= -1) | (action >= 2)).double().mean()) for index, action in log.actions.items()}
    assert found == pytest.approx(expected)
    assert len(set(found.values())) > 5


SPOILED_LENGTHS = (3, 5)


class SpoiledEnvironment(ScriptedEnvironment):
    """The same, without saying so, of which episodes of `SPOILED_LENGTHS` show NaN or infinity, or earn it.

    That comes at their ``start``, in their second ``step`` or as its ``reward``.
    """

    def __init__(self, num_envs: int, spoiled: str, number: float = torch.nan) -> None:
        super().__init__(num_envs, endings=("success", "failure", "timeout"))
        self._spoiled, self._number = spoiled, number

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        if self._spoiled == "reward":
            step.reward[self._spoils_at(2)] = self._number
        return step

    def _observe(self) -> Observation:
        observation = super()._observe()
        clock = {"start": 0, "step": 2}.get(self._spoiled)
        observation["policy"]["position"][self._spoils_at(clock), 1] = self._number
        return observation

    def _spoils_at(self, clock: int | None) -> torch.Tensor:
        is_spoiled = torch.tensor([int(length) in SPOILED_LENGTHS for length in self._length])
        return is_spoiled & (self._clock == (-1 if clock is None else clock))


class StrictPolicy(PolicyBase[None]):
    """Refuses to look at NaN in any env slot."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def get_action(self, env, observation):
        assert all(bool(torch.isfinite(part).all()) for part in observation["policy"].values())
        return observation["policy"]["position"].clamp(-1.0, 1.0)


@pytest.mark.parametrize(
    ("spoiled", "length", "error"),
    [
        ("start", 0, "at the reset, observation 'position' holds NaN or infinity"),
        ("step", 2, "observation 'position' holds NaN or infinity"),
        ("reward", 2, "the reward is nan"),
    ],
)
def test_such_an_episode_is_an_error_that_names_the_entry_and_the_policy_does_not_see_it(spoiled, length, error):
    found = played(SpoiledEnvironment(3, spoiled), StrictPolicy())
    sound = played(SpoiledEnvironment(3, "nothing"), StrictPolicy())
    assert sorted(found) == list(range(24))
    errors = {index for index, record in sound.items() if record.conditions["script.length"] in SPOILED_LENGTHS}
    assert {index for index, record in found.items() if record.outcome is Outcome.ERROR} == errors
    assert {(found[index].error, found[index].length, found[index].success) for index in errors} == {
        (error, length, None)
    }
    for index in found.keys() - errors:
        assert (found[index].outcome, found[index].length) == (sound[index].outcome, sound[index].length)
        assert found[index].episode_return == sound[index].episode_return


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_it_is_found_in_terms_that_lie_side_by_side_and_in_any_group_but_that_of_pictures(number):
    together = torch.full((3, 4), 3e38)
    together[1, 2] = number
    terms = SideBySide(together, {"a": 2, "b": 2})
    shown: list[Observation] = [
        {"policy": terms},
        {"policy": {"a": torch.zeros(3, 1)}, "privileged": {"deep": {"b": together.reshape(3, 2, 2)}}},
        {"policy": {"a": together.to(torch.bfloat16)}},
    ]
    for observation in shown:
        found = unsound_slots(observation, torch.zeros(3))
        assert found is not None
        assert found.tolist() == [False, True, False]
    assert unsound_slots({"camera_obs": {"depth": together}, "policy": {"a": torch.full((3, 2), 3e38)}}) is None
