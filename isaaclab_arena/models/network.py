"""Define the interface of a policy's network: vectors in, vectors out, and a memory per entry of the batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Memory: TypeAlias = tuple[torch.Tensor, ...]
"""What a network remembers; empty where it remembers nothing. Shape of each: (num_layers, batch, hidden_size)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a network says to a batch of observations.

    Attributes:
        mean: Its deterministic output. Shape: (batch, num_outputs).
        memory: What it remembers from now on.
        std: Standard deviation of each output where it is Gaussian, otherwise None. Shape: (batch, num_outputs).
    """

    mean: torch.Tensor
    memory: Memory
    std: torch.Tensor | None = None


class PolicyNetwork(ABC):
    """A network that only computes: what it remembers is handed in and out.

    Attributes:
        num_inputs: Numbers per batch entry that it takes, None where only trying tells.
        num_outputs: Numbers per batch entry that it gives, likewise.
        knows_std: Whether its answers have a standard deviation.
        stated_actions: What its file calls the numbers that it gives, in order, None where it does not.
        stated_terms: The observations that its file says it takes, in order, None where it does not.
    """

    num_inputs: int | None = None
    num_outputs: int | None = None
    knows_std: bool = False
    stated_actions: tuple[str, ...] | None = None
    stated_terms: tuple[str, ...] | None = None

    @abstractmethod
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for a batch, without gradients: with them an LSTM takes a way to other last digits.

        Args:
            observation: On the network's device. Shape: (batch, num_inputs), float32.
            memory: What `new_memory` or the last answer gave; it is not changed.
        """

    def new_memory(self, batch_size: int) -> Memory:
        """Return the memory of batch entries that have seen nothing yet."""
        del batch_size
        return ()

    def close(self) -> None:
        """Say that nothing will be asked for now; it may be asked again."""


def forgotten(memory: Memory, entries: torch.Tensor) -> Memory:
    """Return a memory in which some batch entries have seen nothing yet.

    Args:
        memory: It is not changed.
        entries: Entries of the batch. Shape: (n,), int64.
    """
    return tuple(part.index_fill(1, entries.to(part.device), 0.0) for part in memory)


def remembered(before: Memory, after: Memory, entries: Sequence[int]) -> Memory:
    """Return a memory in which some batch entries have seen one observation more, and the others have not.

    Args:
        before: What the entries remembered; it is not changed.
        after: What they would all remember.
        entries: Entries of the batch that have seen it.
    """
    if not after or len(entries) == after[0].shape[1]:
        return after
    places = torch.tensor(list(entries), dtype=torch.int64, device=after[0].device)
    return tuple(old.index_copy(1, places, new[:, places]) for old, new in zip(before, after, strict=True))
