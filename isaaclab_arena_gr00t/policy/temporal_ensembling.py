"""Temporal ensembling: ask for a chunk in every step, and average all predictions for that step.

Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware (ACT), 2023, section IV-A: of the
predictions for one step, the i-th oldest weighs ``exp(-coeff * i)``, the oldest being number 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch


@dataclass(frozen=True, kw_only=True)
class EnsembledChunks:
    """The latest chunks of every env slot, and their number; see `ActionSource`.

    Attributes:
        coeff: Decay of the weight of later predictions; 0 gives the plain mean.
        chunks: Newest first. Shape: (num_envs, chunk_length, chunk_length, action_dim): env slot, age, step, action.
        count: How many of them there are. Shape: (num_envs,), int64.
        active: Which env slots play. Shape: (num_envs,), bool.
    """

    coeff: float
    chunks: torch.Tensor
    count: torch.Tensor
    active: torch.Tensor

    @classmethod
    def empty(cls, num_envs: int, *, coeff: float, chunk_length: int, action_dim: int, device: torch.device) -> Self:
        """Return the chunks of env slots in which nothing has begun."""
        return cls(
            coeff=coeff,
            chunks=torch.zeros((num_envs, chunk_length, chunk_length, action_dim), device=device),
            count=torch.zeros(num_envs, dtype=torch.int64, device=device),
            active=torch.zeros(num_envs, dtype=torch.bool, device=device),
        )

    @property
    def num_envs(self) -> int:
        """Number of env slots."""
        return self.chunks.shape[0]

    def needs_chunk(self) -> torch.Tensor:
        """Return the active env slots, all of which need a chunk in every step. Shape: (num_envs,), bool."""
        return self.active

    def looked_at_next(self, steps: Sequence[int]) -> torch.Tensor:
        """Return the active env slots: a query in every step shows all that they look like."""
        del steps
        return self.active

    def refilled(self, env_ids: torch.Tensor, chunks: torch.Tensor) -> Self:
        """Return the chunks with a newer one in some env slots. Shape of ``chunks``: (n, chunk_length, action_dim)."""
        shifted = torch.cat((chunks[:, None], self.chunks[env_ids, :-1]), dim=1)
        count = (self.count[env_ids] + 1).clamp(max=self.chunks.shape[1])
        return replace(
            self,
            chunks=self.chunks.index_copy(0, env_ids, shifted),
            count=self.count.index_copy(0, env_ids, count),
        )

    def popped(self, acting: torch.Tensor | None = None) -> tuple[torch.Tensor, Self]:
        """Return the weighted mean of what was predicted for this step, and the same chunks: a new one ages them."""
        del acting
        length = self.chunks.shape[1]
        age = torch.arange(length, device=self.count.device)
        # The chunk of age k was made k steps ago, so its entry number k is about this step.
        predictions = self.chunks[:, age, age]
        rank_from_oldest = self.count[:, None] - 1 - age
        there = (rank_from_oldest >= 0) & self.active[:, None]
        weights = torch.where(there, torch.exp(-self.coeff * rank_from_oldest), 0.0)
        total = weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        # What an env slot held before its episode must not come through, not even as NaN times zero.
        kept = torch.where(there[:, :, None], predictions, 0.0)
        return (kept * (weights / total)[:, :, None]).sum(dim=1), self

    def planned(self, env_id: int) -> torch.Tensor:
        """Return nothing, because each observation changes the mean. Shape: (0, action_dim)."""
        return self.chunks[env_id, 0, :0]

    def restarted(self, env_ids: torch.Tensor) -> Self:
        """Return the chunks without those of these env slots, and the env slots active."""
        return replace(
            self,
            count=self.count.index_fill(0, env_ids, 0),
            active=self.active.index_fill(0, env_ids, True),  # noqa: FBT003  the value to fill in
        )

    def rested(self, env_ids: torch.Tensor) -> Self:
        """Return the chunks with these env slots no longer active."""
        return replace(self, active=self.active.index_fill(0, env_ids, False))  # noqa: FBT003  the value to fill in
