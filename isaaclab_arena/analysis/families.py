"""Several comparisons at once, and means over episodes and tasks with bootstrap intervals. Pure functions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy

from isaaclab_arena.results.statistics import Interval

_RESAMPLES = 10_000
_SEED = 0
_DRAWN_BELOW = 1_000


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being one family, in the given order; none of them is below its own.

    The chance that any true "no difference" of the family falls to 0.05 or below is then at most 5 %, whatever the
    tests have to do with each other (Holm 1979, Scandinavian Journal of Statistics 6, 65).
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Return the BCa bootstrap interval of a mean, None for fewer than two values.

    Below 1,000 values 10,000 resamples are drawn, always the same ones. From there on the interval that infinitely many
    would have is computed from the moments of the values, which is nearer to it than 10,000 are, and takes no time.
    """
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return Interval(low=values[0], high=values[0])
    if len(values) >= _DRAWN_BELOW:
        return _interval_from_moments(np.asarray(values, float), confidence)
    result = scipy.stats.bootstrap(
        (np.asarray(values, float),),
        np.mean,
        confidence_level=confidence,
        n_resamples=_RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(_SEED),
        batch=1_000,
    ).confidence_interval
    return Interval(low=float(result.low), high=float(result.high))


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test; 1 where no pair differs."""
    return float(np.asarray(scipy.stats.wilcoxon(differences), float)[1]) if any(differences) else 1.0


def mean_of_tasks_interval(
    values_by_task: Mapping[str, Sequence[float]], *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the bootstrap interval of the mean over tasks of each task's mean; None where a task has no values.

    Episodes are drawn anew within each task, so every task weighs the same however many episodes it has, as rliable
    does (Agarwal et al. 2021, NeurIPS 34).

    Args:
        values_by_task: The values of each task's episodes: 0 and 1 for successes, differences of pairs, or returns.
        confidence: Of the interval.
        design_effect: How many episodes say as much as one with conditions of its own; the interval is that much wider.
    """
    if not values_by_task or not all(values_by_task.values()):
        return None
    generator = np.random.default_rng(_SEED)
    total = np.zeros(_RESAMPLES)
    for values in values_by_task.values():
        total += _resampled_means(np.asarray(values, float), generator)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(total / len(values_by_task), [tail, 1.0 - tail])
    if design_effect > 1.0:
        mean = sum(float(np.mean(values)) for values in values_by_task.values()) / len(values_by_task)
        low, high = (mean + math.sqrt(design_effect) * (end - mean) for end in (low, high))
    return Interval(low=float(low), high=float(high))


def _interval_from_moments(values: np.ndarray, confidence: float) -> Interval:
    """Return the BCa interval of a mean by Cornish and Fisher's expansion (Hall 1992, The Bootstrap, chapter 3)."""
    # Skewness and excess kurtosis of the mean of a resample.
    skewness = float(scipy.stats.skew(values)) / math.sqrt(len(values))
    excess = float(scipy.stats.kurtosis(values)) / len(values)
    # For a mean, the correction of the bias and the acceleration are both a sixth of its skewness.
    correction = skewness / 6.0

    def end(probability: float) -> float:
        plain = correction + float(scipy.stats.norm.ppf(probability))
        normal = correction + plain / (1.0 - correction * plain)
        cubic = excess * (normal**3 - 3.0 * normal) / 24.0 - skewness**2 * (2.0 * normal**3 - 5.0 * normal) / 36.0
        quantile = normal + skewness * (normal**2 - 1.0) / 6.0 + cubic
        return float(values.mean() + quantile * values.std() / math.sqrt(len(values)))

    tail = (1.0 - confidence) / 2.0
    return Interval(low=end(tail), high=end(1.0 - tail))


def _resampled_means(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the means of as many resamples. Shape: (number of resamples,)."""
    distinct, counts = np.unique(values, return_counts=True)
    # How often each distinct value is drawn says as much as which episodes are, and successes have only two values.
    if len(distinct) <= math.isqrt(len(values)):
        drawn = generator.multinomial(len(values), counts / len(values), size=_RESAMPLES)
        return drawn @ distinct / len(values)
    return np.array([generator.choice(values, len(values)).mean() for _ in range(_RESAMPLES)])
