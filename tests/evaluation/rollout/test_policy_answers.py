"""What a policy answers is taken if it can be meant, and refused by name if not."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.running_episodes import ask
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.specs import CAMERAS_OFF
from tests.fakes import CoinConfig, CoinEnvironment, ShrugPolicy

RUNNING = torch.tensor([True, True, False])


class Answers(ShrugPolicy):
    """Answers what it is given, whatever it is."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.answer


def checked(action: object) -> torch.Tensor:
    return ask(Answers(action), CoinEnvironment(CoinConfig(), 3), {}, RUNNING).action


@pytest.mark.parametrize(
    "action",
    [
        torch.ones(3, 2, dtype=torch.float64),
        torch.ones(3, 2, dtype=torch.bfloat16),
        torch.ones(3, 2, dtype=torch.int64),
        torch.ones(3, 2, dtype=torch.bool),
        torch.ones(3, 2, requires_grad=True),
        torch.ones(2, 3).T,
        torch.ones(1, 2).expand(3, 2),
        np.ones((3, 2)),
        np.ones((3, 2), np.int64),
        np.ones((3, 2), ">f4"),
        np.broadcast_to(np.float32(1), (3, 2)),
        np.ones((2, 3))[::-1].T,
    ],
    ids=[
        *("doubles", "bfloat16", "whole numbers", "truth", "with a gradient", "transposed", "expanded"),
        *("an array", "whole numbers of an array", "big-endian", "not writeable", "turned"),
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


PICTURES = f"pictures: {CAMERAS_OFF}"
SHOWN = {"policy": {"coin": torch.zeros(3, 1), "purse": torch.zeros(3, 2)}}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda shown: shown["camera_obs"]["front"],
            f"get_action fails with KeyError: 'camera_obs'; the observation holds policy: coin, purse. Of {PICTURES}",
        ),
        (
            lambda shown: shown["policy"]["coins"],
            "get_action fails with KeyError: 'coins'; the observation holds policy: coin, purse",
        ),
        (
            lambda shown: shown["coin"],
            "get_action fails with KeyError: 'coin'; the observation holds policy: coin, purse",
        ),
    ],
    ids=["pictures", "entry", "entry_of_a_group"],
)
def test_a_policy_that_looks_for_what_is_not_observed_is_told_what_is(read, message):
    with pytest.raises(PolicyError) as raised:
        ask(Reads(read), CoinEnvironment(CoinConfig(), 3), SHOWN, RUNNING)
    assert str(raised.value).startswith(message)


def test_a_key_that_has_nothing_to_do_with_the_observation_is_left_as_it_is():
    def read(_: Observation) -> object:
        return {"gain": 1.0}["gains"]

    # The function that fails holds no observation of this kind.
    with pytest.raises(KeyError, match="gains"):
        ask(Reads(lambda shown: read({})), CoinEnvironment(CoinConfig(), 3), SHOWN, RUNNING)


def test_a_policy_may_try_what_is_observed():
    def read(shown: Observation) -> None:
        with contextlib.suppress(KeyError):
            shown["camera_obs"]

    ask(Reads(read), CoinEnvironment(CoinConfig(), 3), SHOWN, RUNNING)


def test_an_action_out_of_bounds_is_left_to_the_environment():
    assert torch.equal(checked(torch.full((3, 2), 9.0)), torch.full((3, 2), 9.0))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.full((3, 2), "left"), "must return a torch.Tensor, or a numpy array of real numbers, got an array of <U4"),
        (np.zeros((3, 2), np.complex64), "real numbers, got an array of complex64"),
        (np.zeros(3), r"returned shape \(3,\), the environment takes \(3, 2\)"),
        (np.full((3, 2), np.nan), "NaN or infinity in env slot 0"),
        (None, "real numbers, got NoneType"),
        (torch.zeros(3), r"returned shape \(3,\), the environment takes \(3, 2\)"),
        (torch.zeros(3, 0, 2), r"returned shape \(3, 0, 2\)"),
        (torch.zeros(3, 4, 2), r"returned shape \(3, 4, 2\)"),
        (torch.zeros(2, 3), r"returned shape \(2, 3\)"),
        (torch.full((3, 2), float("inf")), "NaN or infinity in env slot 0"),
        (torch.tensor([[0.0, 0.0], [0.0, float("nan")], [0.0, 0.0]]), "NaN or infinity in env slot 1"),
        (torch.full((3, 2), 1e39, dtype=torch.float64), "NaN or infinity in env slot 0"),
        (torch.zeros(3, 2, dtype=torch.complex64), "actions are real numbers"),
    ],
    ids=[
        *("an array of words", "a complex array", "a flat array", "an array of NaN"),
        *("nothing", "flat", "no chunk", "a chunk", "transposed", "infinite", "NaN", "too large", "complex"),
    ],
)
def test_an_action_that_cannot_be_meant_is_the_policys_error(action, message):
    with pytest.raises(PolicyError, match=message):
        checked(action)


def test_what_a_resting_env_slot_would_do_matters_to_nobody():
    action = torch.zeros(3, 2)
    action[2] = torch.nan
    assert checked(action).shape == (3, 2)
