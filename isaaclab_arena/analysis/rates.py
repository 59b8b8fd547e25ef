"""Comparisons of success rates, paired and several at once, and the number of episodes they need."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from isaaclab_arena.results.statistics import Interval, interval_from_moments, wilson_interval
from isaaclab_arena.results.stopping import PRIOR, PairCounts

# Compare two success rates over pairs of episodes with equal conditions. Pure functions.


def mcnemar_exact_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, which is conservative, from the discordant pairs."""
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    return min(1.0, 2.0 * float(scipy.stats.binom.cdf(min(only_first, only_second), discordant, 0.5)))


def mcnemar_mid_p(only_first: int, only_second: int) -> float:
    """Return McNemar's two-sided mid-p value: the exact one minus the point mass of the observation."""
    # Its level is close to nominal, while the exact test is conservative (Fagerland, Lydersen and Laake 2013, BMC
    # Medical Research Methodology 13, 91).
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    mass = float(scipy.stats.binom.pmf(only_first, discordant, 0.5))
    # An even split is its own mirror image, and loses half of its mass.
    return 1.0 - mass / 2.0 if only_first == only_second else mcnemar_exact_p(only_first, only_second) - mass


def sign_flip_p(differences: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
    """Return the exact and the mid-p value, two-sided, for pairs that share conditions. Shapes: (num_pairs,)."""
    # If neither policy is better, all pairs of one condition could have exchanged policies together. The p-value is the
    # share of sign flips of the conditions' sums that are at least as far from zero as the observed sum; mid-p halves
    # the ties. `differences` is 1, 0 or -1 (first minus second), `draws` is of `draws_of`. With distinct conditions
    # this is McNemar's test.
    sums = np.bincount(draws, differences).astype(int)
    found, steps = abs(int(sums.sum())), np.abs(sums[sums != 0])
    if steps.max(initial=0) <= 1:
        only_first, only_second = int((sums > 0).sum()), int((sums < 0).sum())
        return mcnemar_exact_p(only_first, only_second), mcnemar_mid_p(only_first, only_second)
    # Distribution of the sum of flipped steps: for steps of one size it is binomial.
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
    """Return the interval of the first rate minus the second over pairs, -1 to 1. None without pairs."""
    # Method 10 of Newcombe 1998 (Statistics in Medicine 17, 2635): the Wilson intervals of both rates, joined with the
    # pairs' correlation, which is corrected for continuity.
    total, (first_successes, second_successes) = counts.total, counts.successes
    first, second = (
        wilson_interval(successes, total, confidence=confidence, design_effect=design_effect)
        for successes in counts.successes
    )
    if first is None or second is None:
        return None
    phi = 0.0
    margins = first_successes * (total - first_successes) * second_successes * (total - second_successes)
    if margins != 0:
        numerator = counts.both * counts.neither - counts.only_first * counts.only_second
        # The correction reduces a positive correlation by half an effective pair.
        if numerator > 0:
            numerator = max(0.0, numerator - total * design_effect / 2.0)
        phi = numerator / math.sqrt(margins)

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2.0 * phi * one * other + other * other))

    first_rate, second_rate = first_successes / total, second_successes / total
    difference = first_rate - second_rate
    return Interval(
        low=difference - joined(first_rate - first.low, second.high - second_rate),
        high=difference + joined(first.high - first_rate, second_rate - second.low),
    )


# Several comparisons at once, and means over episodes and tasks with bootstrap intervals. Pure functions.

_RESAMPLES = 10_000
_SEED = 0
_DRAWN_BELOW = 1_000


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted as one family, in the given order (Holm 1979, Scand. J. Statistics 6, 65)."""
    # The probability that any true null hypothesis of the family is rejected at 0.05 is at most 5 %, for any
    # dependence.
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Return the BCa bootstrap interval of a mean, None for fewer than two values."""
    # Below 1,000 values, 10,000 resamples with a fixed seed. From there on the limit of infinitely many resamples is
    # computed from moments, which is closer than 10,000 resamples and takes no time.
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return Interval(low=values[0], high=values[0])
    if len(values) >= _DRAWN_BELOW:
        return interval_from_moments(np.asarray(values, float), confidence)
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
    """Return the two-sided p-value of Wilcoxon's signed-rank test; 1 if no pair differs."""
    return float(np.asarray(scipy.stats.wilcoxon(differences), float)[1]) if any(differences) else 1.0


def mean_of_tasks_interval(
    values_by_task: Mapping[str, Sequence[float]], *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the bootstrap interval of the mean over tasks of each task's mean. None if a task has no values."""
    # Episodes are resampled within each task, so tasks have equal weights at any number of episodes, as in rliable
    # (Agarwal et al. 2021, NeurIPS 34).
    if not values_by_task or not all(values_by_task.values()):
        return None
    generator = np.random.default_rng(_SEED)
    total = np.zeros(_RESAMPLES)
    for task_values in values_by_task.values():
        values = np.asarray(task_values, float)
        distinct, counts = np.unique(values, return_counts=True)
        # Draw counts of distinct values instead of episodes if there are few: successes have only two values.
        if len(distinct) <= math.isqrt(len(values)):
            drawn = generator.multinomial(len(values), counts / len(values), size=_RESAMPLES)
            total += drawn @ distinct / len(values)
        else:
            total += np.array([generator.choice(values, len(values)).mean() for _ in range(_RESAMPLES)])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(total / len(values_by_task), [tail, 1.0 - tail])

    # Shared conditions widen the interval by the square root of the design effect.
    if design_effect > 1.0:
        mean = sum(float(np.mean(values)) for values in values_by_task.values()) / len(values_by_task)
        low, high = (mean + math.sqrt(design_effect) * (end - mean) for end in (low, high))
    return Interval(low=float(low), high=float(high))


# The number of episodes that a comparison needs, through the very test that will decide. Pure functions.

_MAX_EPISODES = 100_000
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
    first, last = scipy.stats.binom.ppf([1e-13, 1.0 - 1e-13], num_pairs, discordant).astype(int)
    numbers = np.arange(first, last + 1)

    # Find the largest count of the rarer outcome at which mid-p rejects, -1 if none. At one more than this count the
    # test never rejects: two neighbouring probabilities are too large.
    most = scipy.stats.binom.ppf(alpha / 2.0, numbers, 0.5).astype(int)
    mid_p = 2.0 * scipy.stats.binom.cdf(most, numbers, 0.5) - scipy.stats.binom.pmf(most, numbers, 0.5)
    limits = np.where((mid_p <= alpha) & (2 * most < numbers), most, most - 1)

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


def boschloo_region(num_episodes: int, *, alpha: float = 0.05) -> np.ndarray:
    """Mask the outcomes that Boschloo's two-sided test rejects. Shape: (num_episodes + 1,) * 2, bool."""
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

    # The power of an exact test rises in steps and falls slightly between them. So the result is the first of ten
    # consecutive numbers that all suffice.
    suffice, number = 0, max(1, high - 10)
    while suffice < 10:
        suffice = suffice + 1 if power_of(number) >= power else 0
        number += 1
    return number - 10


def simulated_stop(chances: PairChances, *, alpha: float = 0.05, at_most: int = _MAX_EPISODES) -> float | None:
    """Return the mean number of pairs up to a decision, checked after each pair. None if a stream is undecided."""
    # The random streams are fixed; the evidence is `log_e_value_of_equality` of each stream.
    generator, num_streams = np.random.default_rng(0), 400
    wins = losses = np.zeros(num_streams, np.int64)
    total, undecided, prior = 0, np.ones(num_streams, bool), scipy.special.betaln(PRIOR, PRIOR)
    for _ in range(at_most):
        total += int(undecided.sum())
        draw = generator.random(num_streams)
        wins = wins + (draw < chances.only_first)
        losses = losses + ((draw >= chances.only_first) & (draw < chances.only_first + chances.only_second))
        evidence = scipy.special.betaln(PRIOR + wins, PRIOR + losses) - prior + (wins + losses) * np.log(2.0)
        undecided &= evidence < -np.log(alpha)
        if not undecided.any():
            return total / num_streams
    return None
