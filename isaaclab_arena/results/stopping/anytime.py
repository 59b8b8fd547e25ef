"""Evidence that may be looked at after every episode, and intervals that hold at every look. Pure functions.

A test for a fixed number of episodes is wrong if one stops as soon as it says yes. An e-value is the wealth of a
gambler who bets against the hypothesis. If the hypothesis is true, the chance that this wealth ever reaches 1 / alpha
is at most alpha (Ville's inequality), however often one looks. The bets here are mixtures with Jeffreys' prior.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import betaincc, betaln, gammaln, xlogy

from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.counts import PairCounts, RateCounts

_PRIOR = 0.5
_Outcomes = tuple[np.ndarray, np.ndarray, np.ndarray]


def log_e_value(wins: int, losses: int, *, one_sided: bool = False) -> float:
    """Return the logarithm of the e-value against "neither policy is better"; decided once it reaches log(1 / alpha).

    Pairs in which both policies came out the same say nothing, and are not counted.

    Args:
        wins: Pairs in which the first policy alone succeeded.
        losses: Pairs in which the second policy alone succeeded.
        one_sided: Whether only "the first is better" is to be found; then it is found sooner.
    """
    _check(wins, losses)
    wealth = float(log_e_values(np.asarray(wins), np.asarray(losses)))
    if not one_sided:
        return wealth
    # The prior on the better half alone, where it has twice the weight.
    above_half = float(betaincc(_PRIOR + wins, _PRIOR + losses, 0.5))
    return wealth + math.log(2.0 * above_half) if above_half > 0.0 else -math.inf


def log_e_values(wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return `log_e_value` of many streams at once. Shapes: (num_streams,)."""
    return _log_mixture(wins, losses) + (wins + losses) * math.log(2.0)


def log_e_value_of_rate(counts: RateCounts, rate: float) -> float:
    """Return the logarithm of the e-value against a success rate; `rate_interval` holds the rates where it is small.

    Args:
        counts: How the episodes came out.
        rate: The rate that it is evidence against, 0 to 1.
    """
    successes, failures = np.asarray(counts.successes), np.asarray(counts.trials - counts.successes)
    return float(log_e_values_of_rate(successes, failures, rate))


def log_e_values_of_rate(successes: np.ndarray, failures: np.ndarray, rate: float) -> np.ndarray:
    """Return `log_e_value_of_rate` of many streams at once. Shapes: (num_streams,)."""
    return _log_mixture(successes, failures) - _log_likelihood(successes, failures, rate)


def log_e_value_of_difference(counts: PairCounts, difference: float) -> float:
    """Return the logarithm of the e-value against a difference of rates; see `difference_interval`.

    Args:
        counts: How the pairs came out.
        difference: The first rate less the second that it is evidence against, -1 to 1.
    """
    outcomes = (counts.only_first, counts.only_second, counts.both + counts.neither)
    wins, losses, alike = (np.asarray(each) for each in outcomes)
    return float(log_e_values_of_difference(wins, losses, alike, difference))


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
    _check(successes, trials - successes)
    counts = np.asarray(successes), np.asarray(trials - successes)
    floor = _log_mixture(*counts) + _log_alpha(alpha)

    def excess(rate: float) -> float:
        return float(_log_likelihood(*counts, rate) - floor)

    return _where_positive(excess, best=successes / trials if trials else 0.5, lowest=0.0, highest=1.0)


def difference_interval(counts: PairCounts, *, alpha: float = 0.05) -> Interval:
    """Return the interval of the first rate less the second that holds at every look; see `rate_interval`.

    A pair comes out in one of three ways: the first policy alone succeeds, the second alone, or they agree. A
    difference is left out if the evidence against every distribution over the three that has it has reached 1 / alpha.
    """
    alike = counts.both + counts.neither
    outcomes = np.asarray(counts.only_first), np.asarray(counts.only_second), np.asarray(alike)
    floor = _log_mixture_of_three(outcomes) + _log_alpha(alpha)

    def excess(difference: float) -> float:
        return float(_highest_log_likelihood(outcomes, difference) - floor)

    return _where_positive(excess, best=counts.difference or 0.0, lowest=-1.0, highest=1.0)


def _log_mixture(successes: np.ndarray, failures: np.ndarray) -> np.ndarray:
    return betaln(_PRIOR + successes, _PRIOR + failures) - betaln(_PRIOR, _PRIOR)


def _log_likelihood(successes: np.ndarray, failures: np.ndarray, rate: float) -> np.ndarray:
    return xlogy(successes, rate) + xlogy(failures, 1.0 - rate)


def _log_mixture_of_three(outcomes: _Outcomes) -> np.ndarray:
    wins, losses, alike = outcomes
    mixture = gammaln(_PRIOR + wins) + gammaln(_PRIOR + losses) + gammaln(_PRIOR + alike) - 3.0 * gammaln(_PRIOR)
    return mixture + gammaln(3.0 * _PRIOR) - gammaln(3.0 * _PRIOR + wins + losses + alike)


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


def _where_positive(excess: Callable[[float], float], *, best: float, lowest: float, highest: float) -> Interval:
    """Return where a function with one peak, which is positive there, is positive."""

    def end(outer: float) -> float:
        if outer == best or excess(outer) > 0.0:
            return outer
        return float(root_scalar(_finite(excess), bracket=(outer, best), method="brentq").root)

    return Interval(low=end(lowest), high=end(highest))


def _finite(excess: Callable[[float], float]) -> Callable[[float], float]:
    """Return the function with a large negative value instead of minus infinity, which a search cannot use."""
    return lambda value: max(excess(value), -1e300)


def _log_alpha(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be between 0 and 1, got {alpha:g}")
    return math.log(alpha)


def _check(one: int, other: int) -> None:
    if min(one, other) < 0:
        raise ValueError(f"counts must not be negative, got {one} and {other}")
