"""Normalise physical values for a network, and undo it. Pure functions.

Every method is a shift and a scale per dimension, so that it can be undone exactly. A dimension that is constant in the
data is only shifted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from gr00t.data.statistics import KeyStatistics

Normalization = Literal["min_max", "q01_q99", "mean_std"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)

# A state beyond this limit is outside of the training data and would only disturb the network.
_STATE_LIMIT: Mapping[Normalization, float] = {"min_max": 2.0, "q01_q99": 2.0, "mean_std": 5.0}
_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The shift and scale of some dimensions."""

    center: Tensor  # value that becomes 0; shape: (dimension,)
    scale: Tensor  # distance that becomes 1; shape: (dimension,)
    state_limit: float  # largest magnitude of a normalised state
    bounded: bool  # whether normalised actions lie in [-1, 1]

    def on(self, device: torch.device) -> "Scaling":
        """Return the scaling on a device."""
        center, scale = (values.to(device, non_blocking=True) for values in (self.center, self.scale))
        return replace(self, center=center, scale=scale)

    def state(self, values: Tensor) -> Tensor:
        """Normalise states. Shape: (..., dimension), kept."""
        return self._normalize(values).clamp(-self.state_limit, self.state_limit)

    def action(self, values: Tensor) -> Tensor:
        """Normalise actions. Shape: (..., dimension), kept."""
        normalized = self._normalize(values)
        return normalized.clamp(-1.0, 1.0) if self.bounded else normalized

    def physical_action(self, normalized: Tensor) -> Tensor:
        """Undo ``action``, and clip values to the range of the data. Shape: kept."""
        inside = normalized.clamp(-1.0, 1.0) if self.bounded else normalized
        return inside * self.scale + self.center

    def _normalize(self, values: Tensor) -> Tensor:
        return (values - self.center) / self.scale.clamp(min=_SMALLEST_SCALE)


def scaling(statistics: list[KeyStatistics], method: Normalization) -> Scaling:
    """Return the scaling of several keys, one after the other."""

    def column(name: str) -> Tensor:
        return torch.tensor([value for key in statistics for value in key[name]], dtype=torch.float32)

    # ``min_max`` and ``q01_q99`` bring the range to [-1, 1], ``mean_std`` the deviation to 1.
    if method == "mean_std":
        center, scale = column("mean"), column("std")
    else:
        low, high = (
            (column(name) for name in ("min", "max"))
            if method == "min_max"
            else (column(name) for name in ("q01", "q99"))
        )
        center, scale = (low + high) / 2, (high - low) / 2
    still = scale < _SMALLEST_SCALE
    return Scaling(
        center=center,
        scale=torch.where(still, torch.zeros_like(scale), scale),
        state_limit=_STATE_LIMIT[method],
        bounded=method != "mean_std",
    )
