"""Whether what is answered for a row follows from the row alone, found out by asking. No policy, no file, no chance.

A matrix library takes other ways through the last rows of a batch than through the first, so what a network answers for
a row may depend, in its last digits, on where the row stands. Nobody can tell that from the network: it depends on the
processor, the library and every layer's size. So the same rows are asked for at other places, among other rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

MAX_CALLS = 5
"""How often a batch of one size is asked for at most."""

Ask: TypeAlias = Callable[[Sequence[int], int], Sequence[torch.Tensor]]
"""Answers a batch: it is given which row stands at each place and a number of steps, starts all rows anew, and returns
what it answers in each step. Shape of each: (num_rows, ...)."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Rows in an order.

    Attributes:
        rows: Which row stands at each place.
        num_steps: For how many steps they are asked for. A second one shows what was remembered after the first.
    """

    rows: tuple[int, ...]
    num_steps: int


def num_distinct_rows(num_rows: int) -> int:
    """Return how many different rows the arrangements of a batch are made of."""
    return num_rows + (num_rows + 1) // 2


def arrangements(num_rows: int) -> tuple[Arrangement, ...]:
    """Return the orders in which rows are asked for.

    As they are; backwards, so that the last rows, which are those that are treated differently, stand first; and moved
    on by half a batch with every second row replaced, so that neighbours are others too.
    """
    forwards = tuple(range(num_rows))
    moved_on = forwards[num_rows // 2 :] + forwards[: num_rows // 2]
    among_others = tuple(row if row % 2 else num_rows + row // 2 for row in moved_on)
    return (
        Arrangement(rows=forwards, num_steps=2),
        Arrangement(rows=forwards[::-1], num_steps=2),
        Arrangement(rows=among_others, num_steps=1),
    )


def answers_follow_from_rows(ask: Ask, num_rows: int) -> bool:
    """Return whether every row was answered the same, to the last bit, wherever it stood and whatever stood beside it.

    Args:
        ask: Answers a batch; it is called for each of `arrangements` in turn, until two answers differ.
        num_rows: Rows of the batch. A batch of one row has no other places, and nothing is asked.
    """
    if num_rows == 1:
        return True
    answered: dict[tuple[int, int], bytes] = {}
    for arrangement in arrangements(num_rows):
        for step, answer in enumerate(ask(arrangement.rows, arrangement.num_steps)):
            for row, bits in zip(arrangement.rows, _bits_of_rows(answer), strict=True):
                if answered.setdefault((row, step), bits) != bits:
                    return False
    return True


def _bits_of_rows(answer: torch.Tensor) -> list[bytes]:
    # Bits and not values: zero is not minus zero, and NaN is the same as itself.
    raw = answer.detach().cpu().contiguous().flatten(1).view(torch.uint8)
    return [row.tobytes() for row in raw.numpy()]
