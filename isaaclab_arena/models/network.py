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
    """A network's output for a batch of observations."""

    mean: torch.Tensor  # deterministic output, shape (batch, num_outputs)
    memory: Memory  # the memory after this observation
    # Standard deviation of each output if it is Gaussian. Shape: (batch, num_outputs).
    std: torch.Tensor | None = None


class PolicyNetwork(ABC):
    """A network without state: its memory is an argument and a result."""

    # Numbers per batch entry of the input and of the output; None if only a trial can tell.
    num_inputs: int | None = None
    num_outputs: int | None = None
    knows_std: bool = False  # True if its answers have a standard deviation
    # The names that its file gives to the outputs, and the observations that its file lists as input, in order.
    stated_actions: tuple[str, ...] | None = None
    stated_terms: tuple[str, ...] | None = None

    @abstractmethod
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for observations (batch, num_inputs), float32; the memory is not changed."""

    def new_memory(self, batch_size: int) -> Memory:
        """Return the memory of batch entries before their first observation."""
        del batch_size
        return ()

    def close(self) -> None:
        """Announce that no request will follow now; later requests are allowed."""


def forgotten(memory: Memory, entries: torch.Tensor) -> Memory:
    """Return a memory without the history of some batch entries, of shape (n,), int64; `memory` is not changed."""
    return tuple(part.index_fill(1, entries.to(part.device), 0.0) for part in memory)


def remembered(before: Memory, after: Memory, entries: Sequence[int]) -> Memory:
    """Return `after` for the batch entries that saw one more observation, and `before` for the others."""
    if not after or len(entries) == after[0].shape[1]:
        return after
    places = torch.tensor(list(entries), dtype=torch.int64, device=after[0].device)
    return tuple(old.index_copy(1, places, new[:, places]) for old, new in zip(before, after, strict=True))
