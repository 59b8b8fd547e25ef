"""Histograms of what episodes measured, successes apart from the rest. Pure functions."""

from dataclasses import dataclass

import numpy as np

_MOST_BINS = 24


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bar of a histogram.

    Attributes:
        low: Its lowest value.
        high: Its highest value; it belongs to the next bin, but in the last one.
        successes: Episodes in it that succeeded.
        others: Its other episodes.
    """

    low: float
    high: float
    successes: int
    others: int

    @property
    def count(self) -> int:
        """Its episodes."""
        return self.successes + self.others


def histogram(values: np.ndarray, success: np.ndarray, *, whole: bool = False) -> tuple[Bin, ...]:
    """Return the bins of a measure, none where no episode has it.

    Args:
        values: Shape: (num_episodes,), float; NaN where an episode has none.
        success: Shape: (num_episodes,), bool.
        whole: Whether values are whole numbers; then a bin holds the same number of them everywhere.
    """
    kept = np.isfinite(values)
    values, success = values[kept], success[kept]
    if not len(values):
        return ()
    edges = _edges(float(values.min()), float(values.max()), len(values), whole=whole)
    won, _ = np.histogram(values[success], edges)
    lost, _ = np.histogram(values[~success], edges)
    return tuple(
        Bin(low=float(low), high=float(high), successes=int(one), others=int(other))
        for low, high, one, other in zip(edges[:-1], edges[1:], won, lost, strict=True)
    )


def _edges(low: float, high: float, count: int, *, whole: bool) -> np.ndarray:
    bins = min(_MOST_BINS, max(1, int(np.ceil(2 * np.sqrt(count)))))
    if whole:
        width = max(1, int(np.ceil((high - low + 1) / bins)))
        return np.arange(low, high + width + 1, width) if high >= low + width else np.array([low, low + width])
    if high == low:
        return np.array([low - 0.5, high + 0.5])
    return np.linspace(low, high, bins + 1)
