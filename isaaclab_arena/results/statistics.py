"""Success rates with their uncertainty. Pure functions; no tables, no files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv, ndtri


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Two ends of an interval of a rate, 0 to 1."""

    low: float
    high: float


def success_rate(successes: int, trials: int) -> float | None:
    """Return the share of successes, None if nothing was tried.

    Raises:
        ValueError: If there are more successes than trials, or a count is negative.
    """
    _check(successes, trials)
    return successes / trials if trials else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation, with one less than their number below; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return Wilson's score interval, None if nothing was tried.

    Its coverage is right on average and it is never empty, not even when all trials succeeded: the one to show.

    Args:
        successes: Trials that succeeded.
        trials: All of them.
        confidence: Of the interval.
        design_effect: How many trials say as much as one that has nothing to do with the others; by so much their
            effective number is smaller.

    Raises:
        ValueError: If there are more successes than trials, or a count is negative.
    """
    _check(successes, trials)
    if trials == 0:
        return None
    return _score_interval(successes / trials, trials / design_effect, confidence)


def mean_rate_interval(
    counts: Sequence[tuple[int, int]], *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the interval of the mean of several tasks' rates, in which every task weighs the same.

    It is Wilson's score interval of that mean at the effective number of trials: as many as one rate would need for
    the variance that the mean has (Korn & Graubard 1998, Survey Methodology 24, 193; with Wilson's interval Franco,
    Little, Louis & Slud 2019, Journal of Survey Statistics and Methodology 7, 334). The variance is that of a
    stratified sample: tasks are the strata, and how they differ from each other adds nothing to it (Cochran 1977,
    Sampling Techniques, chapter 5). It is about more episodes of these tasks, not about other tasks.

    Where no task's trials differ from each other the variance is not known, and the effective number is that of all
    trials, which is cautious. So is the share of a task with one trial: its variance is taken to be that of the mean.
    Of one task alone it is `wilson_interval`.

    Args:
        counts: Successes and trials of each task.
        confidence: Of the interval.
        design_effect: See `wilson_interval`.

    Returns:
        The interval, None if there is no task or one was never tried.

    Raises:
        ValueError: If there are more successes than trials, or a count is negative.
    """
    for successes, trials in counts:
        _check(successes, trials)
    if not counts or not all(trials for _, trials in counts):
        return None
    if len(counts) == 1:
        return wilson_interval(*counts[0], confidence=confidence, design_effect=design_effect)
    rates = [successes / trials for successes, trials in counts]
    mean = sum(rates) / len(rates)
    spread = mean * (1 - mean)
    # Unbiased with one less than the trials below; with the trials themselves, few of them would look too sure.
    variances = [
        rate * (1 - rate) / (trials - 1) if trials > 1 else spread
        for rate, (_, trials) in zip(rates, counts, strict=True)
    ]
    if not sum(variances):
        effective = len(counts) ** 2 / sum(1 / trials for _, trials in counts)
    else:
        effective = spread * len(counts) ** 2 / sum(variances)
    return _score_interval(mean, effective / design_effect, confidence)


def clopper_pearson_interval(
    successes: int, trials: int, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the exact interval of Clopper and Pearson, None if nothing was tried.

    It covers the true rate at least as often as it says, whatever the rate: the one for claims such as "at least". For
    arguments see `wilson_interval`.

    Raises:
        ValueError: If there are more successes than trials, or a count is negative.
    """
    _check(successes, trials)
    if trials == 0:
        return None
    failures, tail = (trials - successes) / design_effect, (1 - confidence) / 2
    successful = successes / design_effect
    return Interval(
        low=float(betaincinv(successful, failures + 1, tail)) if successes else 0.0,
        high=float(betaincinv(successful + 1, failures, 1 - tail)) if failures else 1.0,
    )


def rate_bounds(successes: int, trials: int, unknown: int) -> Interval | None:
    """Return what the rate is if every unknown trial failed, and if every one succeeded; None without any trial.

    Args:
        successes: Trials that succeeded.
        trials: Trials whose result is known.
        unknown: Trials that ended in an error, or are missing.

    Raises:
        ValueError: If a count is negative, or there are more successes than trials.
    """
    _check(successes, trials)
    if unknown < 0:
        raise ValueError(f"unknown must not be negative, got {unknown}")
    total = trials + unknown
    if total == 0:
        return None
    return Interval(low=successes / total, high=(successes + unknown) / total)


def _score_interval(rate: float, trials: float, confidence: float) -> Interval:
    z = float(ndtri((1 + confidence) / 2))
    scale = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / scale
    # At the ends rounding would leave the interval without the rate itself.
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(low=low if rate > 0 else 0.0, high=high if rate < 1 else 1.0)


def _check(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be 0 to {trials} (the trials), got {successes}")
