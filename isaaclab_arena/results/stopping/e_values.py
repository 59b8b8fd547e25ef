"""Evidence that may be looked at after every episode: e-values. Pure functions that load nothing.

An e-value is the wealth of a gambler who bets against a hypothesis. If the hypothesis is true, the chance that this
wealth ever reaches 1 / alpha is at most alpha (Ville's inequality), however often one looks. The bets here are mixtures
with Jeffreys' prior.
"""

import math

from isaaclab_arena.results.stopping.counts import PairCounts, RateCounts

PRIOR = 0.5
"""Each parameter of Jeffreys' prior."""


def log_e_value_of_rate(counts: RateCounts, rate: float) -> float:
    """Return the logarithm of the e-value against a success rate.

    Args:
        counts: How the episodes came out.
        rate: The rate that it is evidence against, 0 to 1.
    """
    outcomes = (counts.successes, counts.trials - counts.successes)
    return _log_mixture(outcomes) - _log_likelihood(outcomes, (rate, 1.0 - rate))


def log_e_value_of_equality(counts: PairCounts) -> float:
    """Return the logarithm of the e-value against "neither policy is better": a fair coin says who wins a pair.

    Pairs in which both policies came out the same say nothing, and are not counted.
    """
    wins, losses = counts.only_first, counts.only_second
    return log_e_value_of_rate(RateCounts(successes=wins, trials=wins + losses), 0.5)


def log_e_value_of_difference(counts: PairCounts, difference: float) -> float:
    """Return the logarithm of the e-value against a difference of rates.

    A pair comes out in one of three ways: the first policy alone succeeds, the second alone, or they agree. Of all
    distributions over the three that have the difference, the evidence is that against the likeliest one.

    Args:
        counts: How the pairs came out.
        difference: The first rate less the second that it is evidence against, -1 to 1.
    """
    outcomes = (counts.only_first, counts.only_second, counts.both + counts.neither)
    return _log_mixture(outcomes) - _log_likelihood(outcomes, _likeliest_chances(outcomes, difference))


def _log_mixture(outcomes: tuple[int, ...]) -> float:
    """Return the logarithm of how likely outcomes in this order are, averaged over the prior."""
    mixture = sum(math.lgamma(PRIOR + each) - math.lgamma(PRIOR) for each in outcomes)
    whole = PRIOR * len(outcomes)
    return mixture + math.lgamma(whole) - math.lgamma(whole + sum(outcomes))


def _log_likelihood(outcomes: tuple[int, ...], chances: tuple[float, ...]) -> float:
    if any(count and chance <= 0.0 for count, chance in zip(outcomes, chances, strict=True)):
        return -math.inf
    return sum(count * math.log(chance) for count, chance in zip(outcomes, chances, strict=True) if count)


def _likeliest_chances(outcomes: tuple[int, int, int], difference: float) -> tuple[float, ...]:
    """Return the likeliest distribution whose first chance less the second is given."""
    wins, losses, rest = outcomes
    total = wins + losses + rest
    # The derivative by the second chance is zero at the larger root of a quadratic.
    linear = wins * (1.0 - difference) + losses * (1.0 - 3.0 * difference) - 2.0 * rest * difference
    constant = losses * difference * (1.0 - difference)
    root = (linear + math.sqrt(max(0.0, linear * linear + 8.0 * total * constant))) / (4.0 * total) if total else 0.0
    second = min(max(root, 0.0, -difference), (1.0 - difference) / 2.0)
    return max(0.0, second + difference), second, max(0.0, 1.0 - 2.0 * second - difference)
