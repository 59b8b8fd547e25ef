"""Compare two success rates over pairs of episodes with the same conditions. Pure functions."""

import math

import numpy as np
import scipy

from isaaclab_arena.results.statistics import Interval, wilson_interval
from isaaclab_arena.results.stopping.counts import PairCounts


def mcnemar_exact_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, which is conservative.

    Args:
        only_first: Pairs in which the first policy alone succeeds.
        only_second: Pairs in which the second policy alone succeeds.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    return min(1.0, 2.0 * float(scipy.stats.binom.cdf(min(only_first, only_second), discordant, 0.5)))


def mcnemar_mid_p(only_first: int, only_second: int) -> float:
    """Return the two-sided mid-p value of McNemar's test: the exact one less the point mass of what was observed.

    It rejects about as often as it says, where the exact test rejects less often (Fagerland, Lydersen and Laake 2013,
    BMC Medical Research Methodology 13, 91). For arguments see `mcnemar_exact_p`.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    mass = float(scipy.stats.binom.pmf(only_first, discordant, 0.5))
    # An even split is its own mirror image, and half of its mass goes.
    return 1.0 - mass / 2.0 if only_first == only_second else mcnemar_exact_p(only_first, only_second) - mass


def sign_flip_p(differences: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
    """Return the two-sided p-values of the exact and the mid-p test that neither policy is better.

    If neither is, the pairs of one condition might as well have come out with the policies exchanged, all of them
    together. Of the sums that this gives, it is the share at least as far from zero as the observed one; for mid-p half
    as often counted if equally far. Where every pair has conditions of its own, it is McNemar's test.

    Args:
        differences: 1 for a pair in which the first policy alone succeeds, -1 for the second, 0. Shape: (num_pairs,).
        draws: What each pair started from, see `draws_of`. Shape: (num_pairs,), int.
    """
    sums = np.bincount(draws, differences).astype(int)
    found, steps = abs(int(sums.sum())), np.abs(sums[sums != 0])
    if steps.max(initial=0) <= 1:
        only_first, only_second = int((sums > 0).sum()), int((sums < 0).sum())
        return mcnemar_exact_p(only_first, only_second), mcnemar_mid_p(only_first, only_second)
    # Chances of how much has a changed sign: for sums of one size it is binomial.
    chances = np.ones(1)
    for step, count in zip(*np.unique(steps, return_counts=True), strict=True):
        own = np.zeros(step * count + 1)
        own[::step] = scipy.stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.maximum(scipy.signal.convolve(chances, own), 0.0)
    changed = (int(steps.sum()) - found) // 2
    mass = float(chances[changed])
    if found == 0:
        return 1.0, 1.0 - mass / 2.0
    exact = min(1.0, 2.0 * float(chances[: changed + 1].sum()))
    return exact, exact - mass


def paired_difference_interval(
    counts: PairCounts, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return an interval of the first rate less the second, -1 to 1; None without pairs.

    Method 10 of Newcombe 1998 (Statistics in Medicine 17, 2635): the Wilson intervals of both rates, joined with the
    correlation of the pairs, corrected for continuity.

    Args:
        counts: How the pairs came out.
        confidence: Of the interval.
        design_effect: How many pairs say as much as one with conditions of its own.
    """
    total = counts.total
    first, second = (
        wilson_interval(successes, total, confidence=confidence, design_effect=design_effect)
        for successes in counts.successes
    )
    if first is None or second is None:
        return None
    first_rate, second_rate = (successes / total for successes in counts.successes)
    phi, difference = _correlation(counts, design_effect), first_rate - second_rate
    return Interval(
        low=difference - _joined(first_rate - first.low, second.high - second_rate, phi),
        high=difference + _joined(first.high - first_rate, second_rate - second.low, phi),
    )


def _joined(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2.0 * phi * one * other + other * other))


def _correlation(counts: PairCounts, design_effect: float) -> float:
    """Return the pairs' correlation, pulled towards zero by half an effective pair where it is positive."""
    (first, second), total = counts.successes, counts.total
    margins = first * (total - first) * second * (total - second)
    if margins == 0:
        return 0.0
    numerator = counts.both * counts.neither - counts.only_first * counts.only_second
    if numerator > 0:
        numerator = max(0.0, numerator - total * design_effect / 2.0)
    return numerator / math.sqrt(margins)
