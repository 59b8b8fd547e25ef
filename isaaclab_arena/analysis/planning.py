"""How many episodes a comparison needs, through the very test that will decide. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from isaaclab_arena.results.statistics import log_e_values

_MAX_EPISODES = 100_000
_LOOKED_AT = 10
_STREAMS = 400
_NEVER = 1e-13
_NUISANCE_RATES = np.linspace(0.005, 0.995, 199)


@dataclass(frozen=True, kw_only=True)
class PairChances:
    """Probabilities of the unequal outcomes of a pair of episodes."""

    only_first: float  # only the first policy succeeds
    only_second: float  # only the second policy succeeds


def pair_chances(first_rate: float, second_rate: float, *, agreement: float) -> PairChances:
    """Return the probabilities for two rates whose outcomes agree to a degree of 0 to 1. ValueError out of range."""
    # `agreement` is the share of conditions that decide the outcome, so that the better policy succeeds on all of them
    # on which the other does. On the rest the outcomes are independent.
    for name, value in (("rate", first_rate), ("rate", second_rate), ("agreement", agreement)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"the {name} must be 0 to 1, got {value:g}")
    both = agreement * min(first_rate, second_rate) + (1.0 - agreement) * first_rate * second_rate
    return PairChances(only_first=first_rate - both, only_second=second_rate - both)


def paired_power(num_pairs: int, chances: PairChances, *, alpha: float = 0.05) -> float:
    """Return the power of McNemar's mid-p test at level `alpha`, by enumeration."""
    discordant = chances.only_first + chances.only_second
    if discordant == 0.0:
        return 0.0
    # Enumerate the number of discordant pairs, which decides how uneven they must be. The others have
    # negligible mass.
    first, last = scipy.stats.binom.ppf([_NEVER, 1.0 - _NEVER], num_pairs, discordant).astype(int)
    numbers = np.arange(first, last + 1)
    limits = _largest_rejected(numbers, alpha)
    share = chances.only_first / discordant
    rejected = scipy.stats.binom.cdf(limits, numbers, share) + scipy.stats.binom.sf(
        numbers - limits - 1, numbers, share
    )
    return float(scipy.stats.binom.pmf(numbers, num_pairs, discordant) @ np.where(limits >= 0, rejected, 0.0))


def independent_power(num_episodes: int, first_rate: float, second_rate: float, *, alpha: float = 0.05) -> float:
    """Return the exact power of Boschloo's test with `num_episodes` episodes per policy."""
    rejected = boschloo_region(num_episodes, alpha=alpha)
    counts = np.arange(num_episodes + 1)
    first, second = (scipy.stats.binom.pmf(counts, num_episodes, rate) for rate in (first_rate, second_rate))
    return float(first @ rejected @ second)


def fisher_power(num_episodes: int, first_rate: float, second_rate: float, *, alpha: float = 0.05) -> float:
    """Return the exact power of Fisher's test, which other tools plan with."""
    counts = np.arange(num_episodes + 1)
    first, second = (scipy.stats.binom.pmf(counts, num_episodes, rate) for rate in (first_rate, second_rate))
    return float(first @ (fisher_p_values(num_episodes) <= alpha) @ second)


def fisher_p_values(num_episodes: int) -> np.ndarray:
    """Return Fisher's two-sided p-values by successes of both arms. Shape: (num_episodes + 1, num_episodes + 1)."""
    p_values = np.ones((num_episodes + 1, num_episodes + 1))
    for successes in range(2 * num_episodes + 1):
        first = np.arange(max(0, successes - num_episodes), min(num_episodes, successes) + 1)
        masses = scipy.stats.hypergeom.pmf(first, 2 * num_episodes, num_episodes, successes)
        order = np.argsort(masses, kind="stable")
        below = np.cumsum(masses[order])
        # Outcomes as likely as the observed one count too; the two masses may differ in their last bits.
        reached = np.searchsorted(masses[order], masses * (1.0 + 1e-7), side="right") - 1
        p_values[first, successes - first] = np.minimum(1.0, below[reached])
    return p_values


def boschloo_region(num_episodes: int, *, alpha: float = 0.05) -> np.ndarray:
    """Mask the outcomes that Boschloo's test rejects, as in `boschloo_p`. Shape: (num_episodes + 1,) * 2, bool."""
    # Each side has half the level. On a side the statistic is Fisher's one-sided p-value, up to the largest bound that
    # keeps the level for every rate.
    counts = np.arange(num_episodes + 1)
    first, second = counts[:, None], counts[None, :]
    # Mirrored outcomes are equally extreme, and must not differ in their last bits.
    p_values = np.round(scipy.stats.hypergeom.sf(first - 1, 2 * num_episodes, num_episodes, first + second), 12)
    masses = scipy.stats.binom.pmf(counts, num_episodes, _NUISANCE_RATES[:, None])
    # By k, the probability of at least k successes. Shape: (num_rates, num_episodes + 2).
    at_least = scipy.stats.binom.sf(np.arange(-1, num_episodes + 1), num_episodes, _NUISANCE_RATES[:, None])
    bounds = np.unique(p_values)

    def level(bound: float) -> float:
        # The p-value falls with the successes of the first arm, for any number of the second's.
        least_rejected = np.sum(p_values > bound, axis=0)
        return float(np.max(np.sum(masses * at_least[:, least_rejected], axis=1)))

    low, high = -1, len(bounds) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if level(bounds[middle]) <= alpha / 2.0 else (low, middle - 1)
    first_is_better = p_values <= (bounds[low] if low >= 0 else -1.0)
    return first_is_better | first_is_better.T


def least_number(power_of: Callable[[int], float], *, power: float, at_most: int = _MAX_EPISODES) -> int | None:
    """Return the least number from which a test has a power, None if no number up to ``at_most`` has it."""
    # The power of an exact test rises in steps and falls slightly between them. So the result is the first of ten
    # consecutive numbers that all suffice.
    if not 0.0 < power < 1.0:
        raise ValueError(f"power must be between 0 and 1, got {power:g}")
    high = 8
    while power_of(high) < power:
        if high >= at_most:
            return None
        high = min(2 * high, at_most)
    low = high // 2
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return _settled(power_of, power, start=max(1, high - _LOOKED_AT))


def simulated_stop(chances: PairChances, *, alpha: float = 0.05, at_most: int = _MAX_EPISODES) -> float | None:
    """Return the mean number of pairs up to a decision, checked after each pair. None if a stream is undecided."""
    # The random streams are fixed; the bound is that of `log_e_value` at level `alpha`.
    generator = np.random.default_rng(0)
    wins = losses = np.zeros(_STREAMS, np.int64)
    total, undecided = 0, np.ones(_STREAMS, bool)
    for _ in range(at_most):
        total += int(undecided.sum())
        draw = generator.random(_STREAMS)
        wins = wins + (draw < chances.only_first)
        losses = losses + ((draw >= chances.only_first) & (draw < chances.only_first + chances.only_second))
        undecided &= log_e_values(wins, losses) < -np.log(alpha)
        if not undecided.any():
            return total / _STREAMS
    return None


def _settled(power_of: Callable[[int], float], power: float, *, start: int) -> int:
    suffice, number = 0, start
    while suffice < _LOOKED_AT:
        suffice = suffice + 1 if power_of(number) >= power else 0
        number += 1
    return number - _LOOKED_AT


def _largest_rejected(discordant: np.ndarray, alpha: float) -> np.ndarray:
    """Return per number of pairs the largest count of the rarer outcome at which mid-p rejects, -1 if none."""
    # At one more than this count the test never rejects: two neighbouring probabilities are too large.
    most = scipy.stats.binom.ppf(alpha / 2.0, discordant, 0.5).astype(int)
    mid_p = 2.0 * scipy.stats.binom.cdf(most, discordant, 0.5) - scipy.stats.binom.pmf(most, discordant, 0.5)
    return np.where((mid_p <= alpha) & (2 * most < discordant), most, most - 1)
