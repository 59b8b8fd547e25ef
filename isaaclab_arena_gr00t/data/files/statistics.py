"""Compute exact statistics of a dataset's columns, for any number of control steps."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Statistics: TypeAlias = Mapping[str, np.ndarray]
"""``min``, ``max``, ``mean``, ``std`` and the `QUANTILES`, each of one shape, and ``count`` of shape (1,)."""


class ColumnSpool:
    """All values of one column, kept on disk, because quantiles need all of them.

    Args:
        directory: Directory for the temporary file, which is always removed.
        size: Numbers per control step.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed in `finish`
        self._size = size

    def append(self, values: np.ndarray) -> None:
        """Add control steps. Shape: (n, size)."""
        self._file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    def finish(self) -> Statistics:
        """Return the statistics of all added control steps, at least one, and remove them."""
        self._file.flush()
        values = np.memmap(self._file, np.float64, "r").reshape(-1, self._size)
        # Only one number of all control steps is in memory at a time.
        columns = [array_statistics(values[:, place : place + 1]) for place in range(self._size)]
        del values
        self._file.close()
        joined = {name: np.concatenate([column[name] for column in columns]) for name in columns[0] if name != "count"}
        return joined | {"count": columns[0]["count"]}


def array_statistics(values: np.ndarray) -> Statistics:
    """Return the statistics of every column of an array.

    Args:
        values: Shape: (num_steps, size), at least one step.

    Returns:
        Shape of each: (size,).
    """
    samples = np.array(values, dtype=np.float64)
    quantiles = np.quantile(samples, list(QUANTILES.values()), axis=0)
    return {
        "min": samples.min(axis=0),
        "max": samples.max(axis=0),
        "mean": samples.mean(axis=0),
        "std": samples.std(axis=0),
        "count": np.array([len(samples)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def intensity_counts(frames: np.ndarray) -> np.ndarray:
    """Return how often each intensity occurs in each channel.

    Args:
        frames: Shape: (n, height, width, channels), uint8.

    Returns:
        Shape: (channels, 256).
    """
    return np.stack(
        [np.bincount(frames[..., channel].reshape(-1), minlength=256) for channel in range(frames.shape[-1])]
    )


def picture_statistics(counts: np.ndarray, num_frames: int) -> Statistics:
    """Return LeRobot's statistics of pictures, with intensities from 0 to 1.

    Args:
        counts: From `intensity_counts`, or the sum of several.
        num_frames: Number of pictures.

    Returns:
        Shape of each: (channels, 1, 1).
    """
    channels = [_of_counts(channel) for channel in counts]
    joined = {name: np.array([each[name] for each in channels]).reshape(-1, 1, 1) / 255 for name in channels[0]}
    return joined | {"count": np.array([num_frames])}


def _of_counts(counts: np.ndarray) -> dict[str, float]:
    levels = np.arange(256, dtype=np.float64)
    total = int(counts.sum())
    mean = float(counts @ levels / total)
    found = np.flatnonzero(counts)
    return {
        "min": float(found[0]),
        "max": float(found[-1]),
        "mean": mean,
        "std": float(np.sqrt(counts @ (levels - mean) ** 2 / total)),
        **{name: _quantile(counts, total, share) for name, share in QUANTILES.items()},
    }


def _quantile(counts: np.ndarray, total: int, share: float) -> float:
    """Return the same as `numpy.quantile`, for values that are given by their counts."""
    position = share * (total - 1)
    below = int(np.floor(position))
    ends = np.cumsum(counts)
    low, high = (int(np.searchsorted(ends, rank, side="right")) for rank in (below, min(below + 1, total - 1)))
    return low + (high - low) * (position - below)
