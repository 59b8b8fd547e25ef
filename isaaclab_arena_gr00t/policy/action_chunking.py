"""Chunks of actions, one per row: what is left of each, which rows need another, and the next action of all.

Everything here is a value: a step in a row's life gives new chunks and leaves the old ones as they were.
"""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch


class ActionSource(Protocol):
    """What turns chunks of actions into one action per control step and row.

    Rows are active from the start of an episode to its end. Rows that are not need no chunk and get zeros.
    """

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        ...

    def needs_chunk(self) -> torch.Tensor:
        """Return which rows cannot go on without a chunk. Shape: (num_envs,), bool."""
        ...

    def refilled(self, env_ids: torch.Tensor, chunks: torch.Tensor) -> Self:
        """Return the source with new chunks in some rows.

        Args:
            env_ids: Rows. Shape: (n,), int64.
            chunks: Their next actions. Shape: (n, chunk_length, action_dim).
        """
        ...

    def popped(self) -> tuple[torch.Tensor, Self]:
        """Return the action of every row, shape (num_envs, action_dim), and the source without it."""
        ...

    def restarted(self, env_ids: torch.Tensor) -> Self:
        """Return the source with nothing left of what rows did before, and these rows active."""
        ...

    def rested(self, env_ids: torch.Tensor) -> Self:
        """Return the source with these rows no longer active."""
        ...


@dataclass(frozen=True, kw_only=True)
class ActionChunks:
    """One chunk after the other: each row plays its own to the end, then needs the next.

    Attributes:
        actions: What each row plays. Shape: (num_envs, chunk_length, action_dim).
        next_step: Which action of it comes next; ``chunk_length`` where it is used up. Shape: (num_envs,), int64.
        active: Which rows play. Shape: (num_envs,), bool.
    """

    actions: torch.Tensor
    next_step: torch.Tensor
    active: torch.Tensor

    @classmethod
    def empty(cls, num_envs: int, *, chunk_length: int, action_dim: int, device: torch.device) -> Self:
        """Return chunks of rows in which nothing has begun."""
        return cls(
            actions=torch.zeros((num_envs, chunk_length, action_dim), device=device),
            next_step=torch.full((num_envs,), chunk_length, dtype=torch.int64, device=device),
            active=torch.zeros(num_envs, dtype=torch.bool, device=device),
        )

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return self.actions.shape[0]

    def needs_chunk(self) -> torch.Tensor:
        """Return which active rows have used theirs up. Shape: (num_envs,), bool."""
        return self.active & (self.next_step >= self.actions.shape[1])

    def refilled(self, env_ids: torch.Tensor, chunks: torch.Tensor) -> Self:
        """Return the chunks with new ones in some rows. Shape of ``chunks``: (n, chunk_length, action_dim)."""
        return replace(
            self,
            actions=self.actions.index_copy(0, env_ids, chunks),
            next_step=self.next_step.index_fill(0, env_ids, 0),
        )

    def popped(self) -> tuple[torch.Tensor, Self]:
        """Return the next action of every row, zeros where it has none, and the chunks without it."""
        has_one = self.active & (self.next_step < self.actions.shape[1])
        step = self.next_step.clamp(max=self.actions.shape[1] - 1)
        rows = torch.arange(self.num_envs, device=step.device)
        action = torch.where(has_one[:, None], self.actions[rows, step], 0.0)
        return action, replace(self, next_step=self.next_step + has_one)

    def restarted(self, env_ids: torch.Tensor) -> Self:
        """Return the chunks with these rows' used up, and the rows active."""
        return replace(
            self,
            next_step=self.next_step.index_fill(0, env_ids, self.actions.shape[1]),
            active=self.active.index_fill(0, env_ids, True),  # noqa: FBT003  the value to fill in
        )

    def rested(self, env_ids: torch.Tensor) -> Self:
        """Return the chunks with these rows no longer active."""
        return replace(self, active=self.active.index_fill(0, env_ids, False))  # noqa: FBT003  the value to fill in
