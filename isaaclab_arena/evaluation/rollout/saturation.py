"""Counts how often a policy asks for the most that an environment takes, or for more."""

import numpy as np
import torch

from isaaclab_arena.interfaces.specs import ArraySpec

_ROUNDING = 1e-6
"""Share of an element's range: closer to a bound than that, a number in single precision lies at it."""


class SaturatedActions:
    """Counts, by env slot, the entries of actions that lie at or beyond their bounds.

    Elements without bounds, and those that can have but one value, do not count.

    Args:
        spec: What an action looks like.
        num_envs: Number of env slots.
        device: Where actions are.

    Attributes:
        so_far: How often each element did. Shape: (num_envs, action_dim), int32, on the device.
    """

    def __init__(self, spec: ArraySpec, num_envs: int, device: torch.device) -> None:
        low, high = (
            np.full(spec.shape, default, np.float32)
            if bound is None
            else np.reshape(bound, spec.shape).astype(np.float32)
            for bound, default in ((spec.low, -np.inf), (spec.high, np.inf))
        )
        near = np.where(np.isfinite(low) & np.isfinite(high), _ROUNDING * (high - low), 0.0).astype(np.float32)
        counts = (np.isfinite(low) | np.isfinite(high)) & (low < high)
        least = np.where(counts, np.maximum(np.nextafter(low, np.float32(np.inf)), low + near), -np.inf)
        most = np.where(counts, np.minimum(np.nextafter(high, np.float32(-np.inf)), high - near), np.inf)
        self._least, self._most = (torch.as_tensor(end, device=device) for end in (least, most))
        self._num_counted = int(counts.sum())
        self.so_far = torch.zeros((num_envs, *spec.shape), dtype=torch.int32, device=device)
        self._asked: torch.Tensor | None = None

    def note(self, action: torch.Tensor) -> None:
        """Look at an action before the environment gets it, which may clip it. Shape: (num_envs, action_dim)."""
        if self._num_counted:
            self._asked = action.clamp(self._least, self._most) != action

    def count(self) -> None:
        """Count the action that was noted last: the step with it was made."""
        if self._asked is not None:
            self.so_far += self._asked

    def begin(self, begins: torch.Tensor) -> None:
        """Count from 0 in some env slots. Shape: (num_envs,), bool, on the device."""
        self.so_far.masked_fill_(begins.reshape(-1, *(1 for _ in self.so_far.shape[1:])), 0)

    def share(self, so_far: torch.Tensor, length: int) -> float | None:
        """Return the share of an episode's entries that did; None if none count, or no step was made.

        Args:
            so_far: Its row of `so_far`, on the CPU.
            length: Number of its control steps.
        """
        return int(so_far.sum()) / (length * self._num_counted) if length and self._num_counted else None
