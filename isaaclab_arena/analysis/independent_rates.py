"""Compare two success rates over episodes that have nothing to do with each other. Pure functions."""

import math

import scipy

from isaaclab_arena.results.statistics import Interval, wilson_interval


def boschloo_p(first_successes: int, first_trials: int, second_successes: int, second_trials: int) -> float | None:
    """Return the two-sided p-value of Boschloo's exact test; None where a policy was not tried.

    It is Fisher's test made as sharp as its level allows, so it never finds less than that.
    """
    if min(first_trials, second_trials) == 0:
        return None
    failures = (first_trials - first_successes, second_trials - second_successes)
    result = scipy.stats.boschloo_exact([[first_successes, second_successes], list(failures)])
    # Where nobody fails, or nobody succeeds, the test has nothing to compare.
    return 1.0 if math.isnan(result.pvalue) else min(1.0, float(result.pvalue))


def independent_difference_interval(
    first_successes: int, first_trials: int, second_successes: int, second_trials: int, *, confidence: float = 0.95
) -> Interval | None:
    """Return an interval of the first rate less the second, -1 to 1; None where a policy was not tried.

    Method 10 of Newcombe 1998 (Statistics in Medicine 17, 873): the Wilson intervals of both rates, joined.
    """
    first = wilson_interval(first_successes, first_trials, confidence=confidence)
    second = wilson_interval(second_successes, second_trials, confidence=confidence)
    if first is None or second is None:
        return None
    first_rate, second_rate = first_successes / first_trials, second_successes / second_trials
    difference = first_rate - second_rate
    return Interval(
        low=difference - math.hypot(first_rate - first.low, second.high - second_rate),
        high=difference + math.hypot(first.high - first_rate, second_rate - second.low),
    )
