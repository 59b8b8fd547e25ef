"""Finds out, by asking, whether the answer for an env slot depends on its place in the batch or on its neighbours.

A matrix library computes the end of a batch in another way than its beginning, so the last digits of a network's answer
may depend on the place. The network does not tell: it is a matter of the processor, the library and the size of every
layer. So the same examples are shown at other places and among other examples. No policy, no file, no chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

MAX_CALLS = 5
"""How often a batch of one size is asked for at most."""

Ask: TypeAlias = Callable[[Sequence[int], int], Sequence[torch.Tensor]]
"""Answers a batch: it is given the example at each place and a number of steps, starts all examples anew, and returns
what it answers in each step. Shape of each: (batch, ...)."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Examples in an order.

    Attributes:
        examples: Which example stands at each place.
        num_steps: For how many steps they are asked for. A second one shows what was remembered after the first.
    """

    examples: tuple[int, ...]
    num_steps: int


def num_examples(batch: int) -> int:
    """Return how many different examples the arrangements of a batch are made of."""
    return batch + (batch + 1) // 2


def arrangements(batch: int) -> tuple[Arrangement, ...]:
    """Return the orders in which examples are asked for.

    As they are; backwards, so that the last places, which are those that are treated differently, come first; and moved
    on by half a batch with every second example replaced, so that neighbours are others too.
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
    """Return whether every example is answered the same, to the last bit, at every place and beside all others.

    Args:
        ask: Answers a batch; it is called for each of `arrangements` in turn, until two answers differ.
        batch: Size of the batch. A batch of one has no other places, and nothing is asked.
    """
    if batch == 1:
        return True
    answered: dict[tuple[int, int], bytes] = {}
    for arrangement in arrangements(batch):
        for step, answer in enumerate(ask(arrangement.examples, arrangement.num_steps)):
            for example, bits in zip(arrangement.examples, _bits(answer), strict=True):
                if answered.setdefault((example, step), bits) != bits:
                    return False
    return True


def _bits(answer: torch.Tensor) -> list[bytes]:
    """Return the bits at each place. Not values: zero is not minus zero, and NaN is the same as itself."""
    raw = answer.detach().cpu().contiguous().flatten(1).view(torch.uint8)
    return [place.tobytes() for place in raw.numpy()]
