"""Success rates with their uncertainty: at a fixed end, at every look, and over shared conditions. Pure functions."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from scipy.special import betaincinv, ndtri, stdtrit

from isaaclab_arena.results.stopping import RateCounts, draw_of, log_e_value_of_rate

# Success rates with their uncertainty. Pure functions; no tables, no files.


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The lower and the upper end of an interval, such as that of a rate, 0 to 1."""

    low: float
    high: float


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation with n - 1 degrees of freedom, None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return Wilson's score interval of a success rate, None without trials.

    Its coverage is correct on average, and it is never empty, not even if all trials succeed. Tables show this one.

    Args:
        successes: Number of successful trials.
        trials: Number of trials.
        confidence: Confidence of the interval.
        design_effect: The number of trials that carry as much information as one independent trial. The effective
            number of trials is smaller by this factor.

    Raises:
        ValueError: If there are more successes than trials, or a count is negative.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be 0 to {trials} (the trials), got {successes}")
    if trials == 0:
        return None
    return _score_interval(successes / trials, trials / design_effect, confidence)


def mean_rate_interval(
    counts: Sequence[tuple[int, int]], *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the interval of the mean of several tasks' rates with equal weights. None if a task has no trials."""
    # Wilson's score interval of the mean at its effective number of trials: the number that one rate would need for the
    # same variance (Korn & Graubard 1998, Survey Methodology 24, 193; with Wilson's interval: Franco, Little, Louis &
    # Slud 2019, Journal of Survey Statistics and Methodology 7, 334). The variance is that of a stratified sample:
    # tasks are the strata, and differences between tasks add nothing to it (Cochran 1977, Sampling Techniques, chapter
    # 5). The interval is about more episodes of these tasks, not about other tasks.
    if not counts or not all(trials for _, trials in counts):
        return None
    if len(counts) == 1:
        return wilson_interval(*counts[0], confidence=confidence, design_effect=design_effect)
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
    return _score_interval(mean, effective / design_effect, confidence)


def clopper_pearson_interval(
    successes: int, trials: int, *, confidence: float = 0.95, design_effect: float = 1.0
) -> Interval | None:
    """Return the exact interval of Clopper and Pearson, None without trials; see `wilson_interval` for arguments."""
    # Its coverage is never below `confidence`, at any true rate, so it is the interval for claims such as "at least".
    if trials == 0:
        return None
    failures, tail = (trials - successes) / design_effect, (1 - confidence) / 2
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


def rate_interval(successes: int, trials: int, *, alpha: float = 0.05) -> Interval:
    """Return the interval of a success rate that is valid at every look at once, with confidence 1 - alpha."""
    # A test for a fixed number of episodes is invalid if its own result stops the run. This interval has the rates
    # against which the evidence is below 1 / alpha, by bisection towards both ends. Without trials it is 0 to 1.
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be between 0 and 1, got {alpha:g}")
    counts, refuted, ends = RateCounts(successes=successes, trials=trials), -math.log(alpha), []
    best = successes / trials if trials else 0.5
    for end in (0.0, 1.0):
        inner, outer = end if log_e_value_of_rate(counts, end) < refuted else best, end
        # A float has 53 bits.
        for _ in range(60):
            middle = (inner + outer) / 2.0
            inner, outer = (middle, outer) if log_e_value_of_rate(counts, middle) < refuted else (inner, middle)
        ends.append(inner)
    return Interval(low=ends[0], high=ends[1])


# Rates and means of episodes that share conditions: they carry less information than as many distinct episodes.
#
# Episodes of equal conditions are the same episode if the policy is deterministic, and correlated if it is not. Pure
# functions.


@dataclass(frozen=True, kw_only=True)
class ScoredEpisodes:
    """Episodes with a known success."""

    success: np.ndarray  # 1 and 0. Shape: (num_episodes,), float
    conditions: Sequence[str]  # `condition_key` of each episode

    def __len__(self) -> int:
        return len(self.success)

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return int(self.success.sum())

    @property
    def rate(self) -> float | None:
        """Share of successful episodes, None without episodes."""
        return self.successes / len(self) if len(self) else None

    @cached_property
    def num_distinct(self) -> int:
        """Number of distinct draws of conditions."""
        return len(set(map(draw_of, self.conditions)))

    @property
    def are_distinct(self) -> bool:
        """Whether no two episodes share conditions."""
        return self.num_distinct == len(self)

    @cached_property
    def design_effect(self) -> float:
        """The number of these episodes that carry as much information as one with its own conditions."""
        return design_effect(self.success, self.conditions, is_rate=True)

    def wilson(self) -> Interval | None:
        """Return Wilson's interval of the rate, None without episodes."""
        return wilson_interval(self.successes, len(self), design_effect=self.design_effect)

    def clopper_pearson(self) -> Interval | None:
        """Return the interval of Clopper and Pearson, None without episodes."""
        return clopper_pearson_interval(self.successes, len(self), design_effect=self.design_effect)


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


def draws_of(conditions: Iterable[str]) -> np.ndarray:
    """Return the number of each episode's draw, see `draw_of`, in order of first use. Shape: (num_episodes,), int."""
    return _numbered(map(draw_of, conditions))


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
        float((np.bincount(each, weights) ** 2).sum() / (weights**2).sum()) for each in (groups, _numbered(conditions))
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


# Means with their uncertainty.

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
        return interval_from_moments(units, 0.95), "bootstrap"
    half = float(stdtrit(len(units) - 1, 0.975) * units.std(ddof=1)) / math.sqrt(len(units))
    return Interval(low=float(units.mean()) - half, high=float(units.mean()) + half), "t"


def interval_from_moments(values: np.ndarray, confidence: float) -> Interval:
    """Return the BCa interval of a mean by Cornish and Fisher's expansion (Hall 1992, The Bootstrap, chapter 3)."""
    # Skewness and excess kurtosis of a resample's mean.
    skewness = float(scipy.stats.skew(values)) / math.sqrt(len(values))
    excess = float(scipy.stats.kurtosis(values)) / len(values)
    # For a mean, the bias correction and the acceleration are both a sixth of its skewness.
    correction = skewness / 6.0

    def end(probability: float) -> float:
        plain = correction + float(scipy.stats.norm.ppf(probability))
        normal = correction + plain / (1.0 - correction * plain)
        cubic = excess * (normal**3 - 3.0 * normal) / 24.0 - skewness**2 * (2.0 * normal**3 - 5.0 * normal) / 36.0
        quantile = normal + skewness * (normal**2 - 1.0) / 6.0 + cubic
        return float(values.mean() + quantile * values.std() / math.sqrt(len(values)))

    tail = (1.0 - confidence) / 2.0
    return Interval(low=end(tail), high=end(1.0 - tail))


def _numbered(texts: Iterable[str]) -> np.ndarray:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], int)
