"""Describe arrays by shapes, bounds and names, which are checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array, without its leading ``num_envs`` dimension.

    Attributes:
        shape: Shape in one env slot.
        dtype: Element type.
        low: Lowest value of each element, flattened, or None where unbounded.
        high: Highest value of each element, flattened, or None where unbounded.
        names: One name per element of the last dimension, for example joint names.
        unit: Unit of the elements, for example ``rad``.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    names: tuple[str, ...] | None = None
    unit: str | None = None


ObservationSpec: TypeAlias = Mapping[str, "ArraySpec | ObservationSpec"]
"""Nested dict of `ArraySpec`: group, then term."""
