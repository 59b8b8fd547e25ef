"""Success rates: intervals, tests of two, and the number of episodes that they need. Pure functions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy
from scipy.special import betaincinv, ndtri, stdtrit

from isaaclab_arena.results.stopping import PRIOR, Interval, PairCounts, draw_of

# Success rates with their uncertainty. Pure functions; no tables, no files.


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation with n - 1 degrees of freedom, None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def most_typical_first(values: Sequence[float]) -> list[int]:
    """Return the positions of values by their distance from the median; equally distant ones keep their order."""
    usual = float(np.median(values)) if len(values) else 0.0
    return sorted(range(len(values)), key=lambda at: abs(values[at] - usual))


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return Wilson's score interval of a success rate, None without trials.

    Its coverage is correct on average, and it is never empty, not even if all trials succeed. Tables show this one.

    Args:
        successes: Number of successful trials.
        trials: Number of trials.
        confidence: Confidence of the interval; at 1, which is also 1 less a tiny level, it is 0 to 1.
        design_effect: The number of trials that carry as much information as one independent trial. The effective
            number of trials is smaller by this factor.

    Raises:
        ValueError: If there are more successes than trials, a count is negative, the confidence is not above 0 and at
            most 1, or the design effect is not positive.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be 0 to {trials} (the trials), got {successes}")
    if not 0.0 < confidence <= 1.0:
        raise ValueError(f"confidence must be above 0 and at most 1, such as 0.95, got {confidence:g}")
    if not design_effect > 0.0:
        raise ValueError(f"design_effect must be positive, got {design_effect:g}")
    if trials == 0:
        return None
    return _score_interval(successes / trials, trials / design_effect, confidence)


def mean_rate_interval(counts: Sequence[tuple[int, int]], *, design_effect: float = 1.0) -> Interval | None:
    """Return the 95 % interval of several tasks' mean rate with equal weights. None if a task has no trials."""
    # Wilson's score interval of the mean at its effective number of trials: the number that one rate would need for the
    # same variance (Korn & Graubard 1998, Survey Methodology 24, 193; with Wilson's interval: Franco, Little, Louis &
    # Slud 2019, Journal of Survey Statistics and Methodology 7, 334). The variance is that of a stratified sample:
    # tasks are the strata, and differences between tasks add nothing to it (Cochran 1977, Sampling Techniques, chapter
    # 5). The interval is about more episodes of these tasks, not about other tasks.
    if not counts or not all(trials for _, trials in counts):
        return None
    if len(counts) == 1:
        return wilson_interval(*counts[0], design_effect=design_effect)
    rates = [successes / trials for successes, trials in counts]
    mean = sum(rates) / len(rates)
    spread = mean * (1 - mean)
    # Unbiased with trials - 1 as divisor; with trials, small samples would look too certain. A task with one trial gets
    # the variance of the mean, which is cautious.
    variances = [
        rate * (1 - rate) / (trials - 1) if trials > 1 else spread
        for rate, (_, trials) in zip(rates, counts, strict=True)
    ]
    # If no task's trials differ, the variance is unknown, and the effective number of all trials is used, which is
    # cautious.
    if not sum(variances):
        effective = len(counts) ** 2 / sum(1 / trials for _, trials in counts)
    else:
        effective = spread * len(counts) ** 2 / sum(variances)
    return _score_interval(mean, effective / design_effect, 0.95)


def clopper_pearson_interval(successes: int, trials: int, *, design_effect: float = 1.0) -> Interval | None:
    """Return the exact 95 % interval of Clopper and Pearson, None without trials; see `wilson_interval`."""
    # Its coverage is never below 95 %, at any true rate, so it is the interval for claims such as "at least".
    if trials == 0:
        return None
    failures, tail = (trials - successes) / design_effect, (1 - 0.95) / 2
    successful = successes / design_effect
    return Interval(
        low=float(betaincinv(successful, failures + 1, tail)) if successes else 0.0,
        high=float(betaincinv(successful + 1, failures, 1 - tail)) if failures else 1.0,
    )


def _score_interval(rate: float, trials: float, confidence: float) -> Interval:
    z = float(ndtri((1 + confidence) / 2))
    scale = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / scale
    # At the ends, rounding would exclude the rate itself from the interval.
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(low=low if rate > 0 else 0.0, high=high if rate < 1 else 1.0)


# Rates and means of episodes that share conditions: they carry less information than as many distinct episodes.
#
# Episodes of equal conditions are the same episode if the policy is deterministic, and correlated if it is not. Pure
# functions.


@dataclass(frozen=True, kw_only=True)
class ScoredEpisodes:
    """Episodes with a known success."""

    success: np.ndarray  # 1 and 0. Shape: (num_episodes,), float
    conditions: Sequence[str]  # `condition_key` of each episode
    successes: int = field(init=False)
    rate: float | None = field(init=False)  # share of successful episodes, None without episodes

    def __post_init__(self) -> None:
        successes = int(self.success.sum())
        vars(self).update(successes=successes, rate=successes / len(self) if len(self) else None)

    def __len__(self) -> int:
        return len(self.success)

    @cached_property
    def num_distinct(self) -> int:
        """Number of distinct draws of conditions."""
        return len(set(map(draw_of, self.conditions)))

    @cached_property
    def design_effect(self) -> float:
        """The number of these episodes that carry as much information as one with its own conditions."""
        return design_effect(self.success, self.conditions, is_rate=True)

    def wilson(self) -> Interval | None:
        """Return Wilson's interval of the rate, None without episodes."""
        return wilson_interval(self.successes, len(self), design_effect=self.design_effect)


def together(parts: Sequence[ScoredEpisodes]) -> ScoredEpisodes:
    """Return the episodes of several jobs as one set."""
    return ScoredEpisodes(
        success=np.concatenate([np.zeros(0), *(part.success for part in parts)]),
        conditions=[condition for part in parts for condition in part.conditions],
    )


def mean_of_tasks(tasks: Sequence[ScoredEpisodes]) -> Interval | None:
    """Return the interval of the tasks' mean rate, see `mean_rate_interval`; tasks may share conditions."""
    if not all(map(len, tasks)):
        return None
    everything = together(tasks)
    strata = np.repeat(np.arange(len(tasks)), [len(task) for task in tasks])
    effect = design_effect(everything.success, everything.conditions, strata=strata, is_rate=True)
    return mean_rate_interval([(task.successes, len(task)) for task in tasks], design_effect=effect)


def draws_of(conditions: Iterable[str], *, of: Callable[[str], str] = draw_of) -> np.ndarray:
    """Return the number of each episode's draw, see `draw_of`, in order of first use. Shape: (num_episodes,), int."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(of(each), len(numbers)) for each in conditions], int)


def design_effect(
    values: np.ndarray, conditions: Sequence[str], *, strata: np.ndarray | None = None, is_rate: bool = False
) -> float:
    """Return the variance of a mean relative to that of as many episodes with conditions of their own; at least 1."""
    # The variance is that of a sample of conditions, from the sums over their episodes: the linearised variance of a
    # ratio (Cochran 1977, Sampling Techniques, chapter 6). For intervals of rates see Korn & Graubard 1998, Survey
    # Methodology 24, 193, with the square of Student's quantile over the normal one for few conditions.
    #
    # The upper bound `most` is the effect if the conditions alone decide, so that each of them counts once. It is also
    # the result if all episodes of a task have equal conditions, because nothing then reveals the variance. If all
    # values are equal, the dependence between tasks is unknown too, and `alone` counts only equal conditions within a
    # task.
    groups = draws_of(conditions)
    num_groups = int(groups.max(initial=-1)) + 1
    if num_groups == len(groups):
        return 1.0
    strata = np.zeros(len(groups), int) if strata is None else strata
    sizes = np.bincount(strata)
    weights = 1.0 / (len(sizes) * sizes[strata])
    most, alone = (
        float((np.bincount(each, weights) ** 2).sum() / (weights**2).sum())
        for each in (groups, draws_of(conditions, of=str))
    )

    # The spread of episodes within tasks, and of the sums of conditions.
    means = np.bincount(strata, values) / sizes
    residuals = values - means[strata]
    spread = np.where(sizes > 1, np.bincount(strata, residuals**2) / np.maximum(sizes - 1, 1), values.var())
    independent = float((weights**2 * spread[strata]).sum())
    pairs, members = np.unique(strata * num_groups + groups, return_inverse=True)
    conditions_of_task = np.bincount(pairs // num_groups)
    if ((conditions_of_task == 1) & (sizes > 1)).any():
        return most
    if independent == 0.0:
        return alone
    corrections = conditions_of_task / np.maximum(conditions_of_task - 1, 1)
    shares = weights * residuals * np.sqrt(corrections)[strata]
    clustered = float((np.bincount(groups, shares) ** 2).sum())
    # A rate near 0 or 1 depends on a few conditions, whose spread looks too small. So a rate gets two imaginary
    # conditions with a twentieth of the weight of a real one: one that always succeeds, and one that never does.
    if is_rate:
        squares = np.bincount(pairs // num_groups, np.bincount(members, weights) ** 2) / conditions_of_task
        clustered += 0.05 * float((corrections * squares * ((1.0 - means) ** 2 + means**2)).sum())

    freedom = max(num_groups - len(sizes), int(conditions_of_task.min()) - 1)
    few = float(stdtrit(freedom, 0.975) / ndtri(0.975)) ** 2 if freedom > 0 else math.inf
    return min(max(few * clustered / independent, 1.0), most)


def means_of_draws(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the mean value per draw, or the values themselves if all draws differ. Shape: (num_draws,)."""
    sizes = np.bincount(draws)
    if sizes.max(initial=0) <= 1:
        return values
    return (np.bincount(draws, values) / np.maximum(sizes, 1))[sizes > 0]


def influences(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return one value per draw with the overall mean, whose spread is that of a new sample of draws. (num_draws,)."""
    # If all draws differ, these are the values themselves.
    sizes = np.bincount(draws)
    if sizes.max(initial=0) <= 1:
        return values
    sums, mean, sizes = np.bincount(draws, values)[sizes > 0], values.mean(), sizes[sizes > 0]
    return mean + len(sizes) * (sums - sizes * mean) / len(values)


BOOTSTRAPPED_FROM = 100
"""Number of values from which on the interval of a mean follows their skewness, as a bootstrap does."""


def interval_of_mean(values: np.ndarray, draws: np.ndarray) -> tuple[Interval, str] | None:
    """Return the 95 % interval of a mean over episodes, and its method: ``t`` or ``bootstrap``. None for few values."""
    # Both arrays have shape (num_episodes,). Episodes of one draw count as one, see `influences`. Student's interval is
    # for few values, whose skewness is not known well.
    units = influences(values, draws)
    if len(units) < 2:
        return None
    # Values that differ by rounding alone have no skewness.
    differ = np.ptp(units) > 1e-12 * np.abs(units).max()
    if len(units) >= BOOTSTRAPPED_FROM and differ:
        return interval_from_moments(units), "bootstrap"
    half = float(stdtrit(len(units) - 1, 0.975) * units.std(ddof=1)) / math.sqrt(len(units))
    return Interval(low=float(units.mean()) - half, high=float(units.mean()) + half), "t"


def interval_from_moments(values: np.ndarray) -> Interval:
    """Return the 95 % BCa interval of a mean by a Cornish-Fisher expansion (Hall 1992, The Bootstrap, chapter 3)."""
    # Skewness and excess kurtosis of a resample's mean.
    skewness = float(scipy.stats.skew(values)) / math.sqrt(len(values))
    excess = float(scipy.stats.kurtosis(values)) / len(values)
    # For a mean, the bias correction and the acceleration are both a sixth of its skewness.
    correction = skewness / 6.0

    ends, tail = [], (1.0 - 0.95) / 2.0
    for probability in (tail, 1.0 - tail):
        plain = correction + float(scipy.stats.norm.ppf(probability))
        normal = correction + plain / (1.0 - correction * plain)
        cubic = excess * (normal**3 - 3.0 * normal) / 24.0 - skewness**2 * (2.0 * normal**3 - 5.0 * normal) / 36.0
        quantile = normal + skewness * (normal**2 - 1.0) / 6.0 + cubic
        ends.append(float(values.mean() + quantile * values.std() / math.sqrt(len(values))))
    return Interval(low=ends[0], high=ends[1])


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
    phi = _correlation(counts, design_effect)
    first_rate, second_rate = first_successes / total, second_successes / total
    below, above = (
        math.sqrt(max(0.0, one * one - 2.0 * phi * one * other + other * other))
        for one, other in (
            (first_rate - first.low, second.high - second_rate),
            (first.high - first_rate, second_rate - second.low),
        )
    )
    return Interval(low=first_rate - second_rate - below, high=first_rate - second_rate + above)


def _correlation(counts: PairCounts, design_effect: float) -> float:
    """Return the correlation of the outcomes of pairs, corrected for continuity; 0 without any spread."""
    total, (first, second) = counts.total, counts.successes
    margins = first * (total - first) * second * (total - second)
    if margins == 0:
        return 0.0
    numerator = counts.both * counts.neither - counts.only_first * counts.only_second
    # The correction reduces a positive correlation by half an effective pair.
    if numerator > 0:
        numerator = max(0.0, numerator - total * design_effect / 2.0)
    return numerator / math.sqrt(margins)


def paired_share(tasks: Sequence[PairCounts], *, design_effect: float = 1.0) -> tuple[float, Interval] | None:
    """Return the second mean rate of tasks as a share of the first, with its 95 % interval; None if the first is 0.

    The share of the means p2 / p1 is inside the interval for every s at which the paired interval of p2 - s * p1
    contains 0. That interval is made of the intervals [l1, u1] and [l2, u2] of both means and their correlation r, as
    Newcombe's method 10 does for a difference: its lower end is
    ``p2 - s*p1 - sqrt((p2 - l2)**2 - 2*r*s*(p2 - l2)*(u1 - p1) + s**2*(u1 - p1)**2)``, and the upper end mirrors it. So
    the share differs from 1 if and only if the difference differs from 0. Donner & Zou 2012, Statistical Methods in
    Medical Research 21, 347 (MOVER); for pairs: Fagerland, Lydersen & Laake 2017, Statistical Analysis of Contingency
    Tables, chapter 8.

    Args:
        tasks: Outcomes of the pairs of each task; every task has the same weight.
        design_effect: The number of pairs that carry as much information as one with its own conditions.
    """
    if not tasks or not all(counts.total for counts in tasks):
        return None
    of_tasks = np.array([counts.successes for counts in tasks]) / np.array([[counts.total] for counts in tasks])
    first, second = of_tasks.mean(axis=0).tolist()
    first_interval, second_interval = (
        mean_rate_interval([(counts.successes[side], counts.total) for counts in tasks], design_effect=design_effect)
        for side in (0, 1)
    )
    if first == 0.0 or first_interval is None or second_interval is None:
        return None
    # The correlation of the means: tasks are independent.
    errors = np.sqrt(of_tasks * (1.0 - of_tasks) / np.array([[counts.total] for counts in tasks]))
    phis = np.array([_correlation(counts, design_effect) for counts in tasks])
    spread = float(np.sqrt((errors**2).sum(axis=0).prod()))
    phi = float((phis * errors.prod(axis=1)).sum()) / spread if spread else 0.0

    def distance(share: float, side: int) -> float:
        """Return the height of an end of the interval of p2 - s * p1 above 0; ``side`` is -1 or 1."""
        own, other = second_interval.high - second, first - first_interval.low
        if side < 0:
            own, other = second - second_interval.low, first_interval.high - first
        width = math.sqrt(max(0.0, own**2 - 2.0 * phi * share * own * other + (share * other) ** 2))
        return second - share * first + side * width

    # Each end by bisection; the upper end of the difference falls, because that of the first mean is above 0.
    found, most = second / first, max(1.0, second / first)
    while distance(most, 1) > 0.0:
        most *= 2.0
    spans = {-1: [0.0, found], 1: [found, most]}
    for side, span in spans.items():
        for _ in range(60):
            middle = sum(span) / 2.0
            span[int(distance(middle, side) <= 0.0)] = middle
    return found, Interval(low=spans[-1][0], high=spans[1][0])


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


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % BCa bootstrap interval of a mean, None for fewer than two values."""
    # Below 1,000 values, 10,000 resamples with a fixed seed. From there on the limit of infinitely many resamples is
    # computed from moments, which is closer than 10,000 resamples and takes no time.
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return Interval(low=values[0], high=values[0])
    if len(values) >= _DRAWN_BELOW:
        return interval_from_moments(np.asarray(values, float))
    result = scipy.stats.bootstrap(
        (np.asarray(values, float),),
        np.mean,
        confidence_level=0.95,
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
    """Return the probabilities for two rates whose outcomes agree to a degree of 0 to 1."""
    # `agreement` is the share of conditions that decide the outcome, so that the better policy succeeds on all of them
    # on which the other does. On the rest the outcomes are independent.
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

    low, high = -1, len(bounds) - 1
    while low < high:
        middle = (low + high + 1) // 2
        # The p-value falls with the successes of the first arm, for any number of the second's.
        least_rejected = np.sum(p_values > bounds[middle], axis=0)
        level = float(np.max(np.sum(masses * at_least[:, least_rejected], axis=1)))
        low, high = (middle, high) if level <= alpha / 2.0 else (low, middle - 1)
    first_is_better = p_values <= (bounds[low] if low >= 0 else -1.0)
    return first_is_better | first_is_better.T


def least_number(power_of: Callable[[int], float], *, power: float, at_most: int = _MAX_EPISODES) -> int | None:
    """Return the least number from which a test has a power below 1, None if no number up to ``at_most`` has it."""
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
