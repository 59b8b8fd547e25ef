"""Test whether a network's answer for an env slot depends on its place in the batch or on its neighbours.

A matrix library may compute the end of a batch differently from its beginning, so the last digits of a network's answer
may depend on the place. This depends on the processor, the library and the size of every layer, so it must be tested.
The test shows the same examples at other places and among other examples. Pure functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

MAX_CALLS = 5
"""Largest number of calls for a batch of one size."""

Ask: TypeAlias = Callable[[Sequence[int], int], Sequence[torch.Tensor]]
"""Answers a batch. It gets the example at each place and a number of steps, restarts all examples, and returns the
answer of each step. Shape of each: (batch, ...)."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """One order of the examples.

    Attributes:
        examples: Index of the example at each place.
        num_steps: Number of steps. A second one also tests what a policy remembers of the first.
    """

    examples: tuple[int, ...]
    num_steps: int


def num_examples(batch: int) -> int:
    """Return the number of different examples in the arrangements of a batch."""
    return batch + (batch + 1) // 2


def arrangements(batch: int) -> tuple[Arrangement, ...]:
    """Return the orders in which examples are shown.

    The first is the original order. The second is reversed, because the last places are those that are computed
    differently. The third is shifted by half a batch, with every second example replaced, so that neighbours differ
    too.
    """
    forwards = tuple(range(batch))
    moved_on = forwards[batch // 2 :] + forwards[: batch // 2]
    among_others = tuple(example if example % 2 else batch + example // 2 for example in moved_on)
    return (
        Arrangement(examples=forwards, num_steps=2),
        Arrangement(examples=forwards[::-1], num_steps=2),
        Arrangement(examples=among_others, num_steps=1),
    )


def answers_follow_from_examples(ask: Ask, batch: int) -> bool:
    """Return whether the answer to every example has the same bits at every place and beside all others.

    Args:
        ask: Answers a batch; called for each of `arrangements` in turn, until two answers differ.
        batch: Size of the batch. For a batch of one nothing is asked, because there is no other place.
    """
    if batch == 1:
        return True
    answered: dict[tuple[int, int], bytes] = {}
    for arrangement in arrangements(batch):
        for step, answer in enumerate(ask(arrangement.examples, arrangement.num_steps)):
            for example, answered_bits in zip(arrangement.examples, _bits(answer), strict=True):
                if answered.setdefault((example, step), answered_bits) != answered_bits:
                    return False
    return True


def _bits(answer: torch.Tensor) -> list[bytes]:
    """Return the bits at each place; unlike values, they tell zero from minus zero, and NaN equals itself."""
    raw = answer.detach().cpu().contiguous().flatten(1).view(torch.uint8)
    return [place.tobytes() for place in raw.numpy()]
