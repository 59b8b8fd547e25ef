"""An observation group as one vector per row, for networks that know no names."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch

from isaaclab_arena.interfaces.specs import ArraySpec


def flat_size(terms: Mapping[str, ArraySpec]) -> int:
    """Return how many numbers a group of observation terms has, which may be 0."""
    return sum(prod(spec.shape) for spec in terms.values())


def flattened(
    group: Mapping[str, torch.Tensor], terms: Sequence[str], *, num_envs: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return terms of an observation group side by side.

    Args:
        group: Term to its value. Shape of each: (num_envs, ...).
        terms: Which ones, in this order; none gives a vector without numbers.
        num_envs: Number of rows.
        device: Where a vector without numbers lives; others live where their terms do.

    Returns:
        Shape: (num_envs, sum of sizes), float32.

    Raises:
        KeyError: If the group lacks a term.
    """
    parts = [group[name].reshape(num_envs, -1).to(torch.float32) for name in terms]
    return torch.cat(parts, dim=1) if parts else torch.zeros(num_envs, 0, device=device)


def flat_array(terms: Mapping[str, np.ndarray], *, batch_dims: int = 0) -> np.ndarray:
    """Return observation terms side by side, in alphabetical order of their names, which a file keeps too.

    Args:
        terms: Term to its value. Shape of each: (*batch, ...).
        batch_dims: How many leading dimensions they share.

    Returns:
        Shape: (*batch, sum of sizes), float32.
    """
    parts = [terms[name].reshape(*terms[name].shape[:batch_dims], -1).astype(np.float32) for name in sorted(terms)]
    return np.concatenate(parts, axis=-1)
