"""What a policy answers is taken if it can be meant, and refused by name if not."""

from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout.policy_answers import ask
from isaaclab_arena.interfaces.environment import Environment, Observation
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
