"""Intervals that hold at every look, however often one looks, and e-values of many streams. Pure functions.

A test for a fixed number of episodes is wrong if one stops as soon as it says yes. An interval here holds whatever the
evidence of `e_values` has not refuted.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betaincc, betaln, gammaln, xlogy

from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.counts import PairCounts, RateCounts
from isaaclab_arena.results.stopping.e_values import PRIOR, log_e_value_of_difference, log_e_value_of_rate

_HALVINGS = 60
_Outcomes = tuple[np.ndarray, np.ndarray, np.ndarray]


def log_e_value(wins: int, losses: int, *, one_sided: bool = False) -> float:
    """Return the logarithm of the e-value against "neither policy is better"; decided once it reaches log(1 / alpha).

    Pairs in which both policies came out the same say nothing, and are not counted.

    Args:
        wins: Pairs in which the first policy alone succeeded.
        losses: Pairs in which the second policy alone succeeded.
        one_sided: Whether only "the first is better" is to be found; then it is found sooner.
    """
    wealth = log_e_value_of_rate(RateCounts(successes=wins, trials=wins + losses), 0.5)
    if not one_sided:
        return wealth
    # The prior on the better half alone, where it has twice the weight.
    above_half = float(betaincc(PRIOR + wins, PRIOR + losses, 0.5))
    return wealth + math.log(2.0 * above_half) if above_half > 0.0 else -math.inf


def log_e_values(wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return `log_e_value` of many streams at once. Shapes: (num_streams,)."""
    return log_e_values_of_rate(wins, losses, 0.5)


def log_e_values_of_rate(successes: np.ndarray, failures: np.ndarray, rate: float) -> np.ndarray:
    """Return `log_e_value_of_rate` of many streams at once. Shapes: (num_streams,)."""
    mixture = betaln(PRIOR + successes, PRIOR + failures) - betaln(PRIOR, PRIOR)
    return mixture - xlogy(successes, rate) - xlogy(failures, 1.0 - rate)


def log_e_values_of_difference(
    wins: np.ndarray, losses: np.ndarray, alike: np.ndarray, difference: float
) -> np.ndarray:
    """Return `log_e_value_of_difference` of many streams at once.

    Args:
        wins: Pairs in which the first policy alone succeeded. Shape: (num_streams,), like the other two.
        losses: Pairs in which the second policy alone succeeded.
        alike: Pairs in which both came out the same.
        difference: The first rate less the second that it is evidence against, -1 to 1.
    """
    outcomes = (wins, losses, alike)
    return _log_mixture_of_three(outcomes) - _highest_log_likelihood(outcomes, difference)


def rate_interval(successes: int, trials: int, *, alpha: float = 0.05) -> Interval:
    """Return the interval of a success rate that holds at every look at once, with a confidence of 1 - alpha.

    These are the rates against which the evidence has not reached 1 / alpha. Without trials it is 0 to 1.

    Raises:
        ValueError: If a count is negative, there are more successes than trials, or ``alpha`` is no chance.
    """
    counts, refuted = RateCounts(successes=successes, trials=trials), _refuted_from(alpha)
    return _around(
        successes / trials if trials else 0.5, lambda rate: log_e_value_of_rate(counts, rate) < refuted, ends=(0.0, 1.0)
    )


def difference_interval(counts: PairCounts, *, alpha: float = 0.05) -> Interval:
    """Return the interval of the first rate less the second that holds at every look; see `rate_interval`."""
    refuted = _refuted_from(alpha)
    return _around(
        counts.difference or 0.0,
        lambda difference: log_e_value_of_difference(counts, difference) < refuted,
        ends=(-1.0, 1.0),
    )


def _log_mixture_of_three(outcomes: _Outcomes) -> np.ndarray:
    wins, losses, alike = outcomes
    mixture = gammaln(PRIOR + wins) + gammaln(PRIOR + losses) + gammaln(PRIOR + alike) - 3.0 * gammaln(PRIOR)
    return mixture + gammaln(3.0 * PRIOR) - gammaln(3.0 * PRIOR + wins + losses + alike)


def _highest_log_likelihood(outcomes: _Outcomes, difference: float) -> np.ndarray:
    """Return the likelihood's logarithm for the likeliest distribution whose first chance less the second is given."""
    wins, losses, alike = outcomes
    total = wins + losses + alike
    # The derivative by the second chance is zero at the larger root of a quadratic.
    linear = wins * (1.0 - difference) + losses * (1.0 - 3.0 * difference) - 2.0 * alike * difference
    constant = losses * difference * (1.0 - difference)
    rooted = np.sqrt(np.maximum(linear * linear + 8.0 * total * constant, 0.0))
    root = (linear + rooted) / (4.0 * np.maximum(total, 1))
    second = np.minimum(np.maximum(root, max(0.0, -difference)), (1.0 - difference) / 2.0)
    first, neither = np.maximum(second + difference, 0.0), np.maximum(1.0 - 2.0 * second - difference, 0.0)
    return xlogy(wins, first) + xlogy(losses, second) + xlogy(alike, neither)


def _around(best: float, is_inside: Callable[[float], bool], *, ends: tuple[float, float]) -> Interval:
    """Return the interval of what is inside, which holds ``best``."""

    def last_inside(outer: float) -> float:
        if is_inside(outer):
            return outer
        inner = best
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2.0
            inner, outer = (middle, outer) if is_inside(middle) else (inner, middle)
        return inner

    return Interval(low=last_inside(ends[0]), high=last_inside(ends[1]))


def _refuted_from(alpha: float) -> float:
    """Return the logarithm of the evidence that refutes at a level."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be between 0 and 1, got {alpha:g}")
    return -math.log(alpha)
