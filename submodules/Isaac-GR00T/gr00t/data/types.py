"""Define modalities, their configuration, and the statistics of states and actions that a checkpoint keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

MODALITIES = ("video", "state", "action", "language")


@dataclass(frozen=True)
class ModalityConfig:
    """The entries of one modality that a model takes or gives, and their time steps.

    Attributes:
        delta_indices: Steps relative to now: ``[0]`` is now, ``[-1, 0]`` the last step and now. Actions have
            ``range(horizon)``.
        modality_keys: Names of the entries, in the order in which the model holds them.
    """

    delta_indices: list[int]
    modality_keys: list[str]


ModalityConfigs: TypeAlias = Mapping[str, ModalityConfig]
"""One configuration for each of ``video``, ``state``, ``action`` and ``language``."""

KeyStatistics: TypeAlias = dict[str, list[float]]
"""``min``, ``max``, ``mean``, ``std``, ``q01`` and ``q99`` of one key. Shape of each: (dimension,)."""


def compute_statistics(values: np.ndarray) -> KeyStatistics:
    """Return the statistics of one key's values (num_samples, dimension); ValueError if empty or not finite."""
    samples = np.asarray(values, dtype=np.float64)
    if samples.ndim != 2 or not len(samples):
        raise ValueError(f"statistics need an array of shape (num_samples, dimension), got {samples.shape}")
    if not np.isfinite(samples).all():
        raise ValueError("statistics need finite values, and some are not")
    # Outliers barely move these quantiles, so a normalisation may use them instead of the range.
    low, high = np.quantile(samples, [0.01, 0.99], axis=0)
    columns = {
        "min": samples.min(axis=0),
        "max": samples.max(axis=0),
        "mean": samples.mean(axis=0),
        "std": samples.std(axis=0),
        "q01": low,
        "q99": high,
    }
    return {name: column.tolist() for name, column in columns.items()}
