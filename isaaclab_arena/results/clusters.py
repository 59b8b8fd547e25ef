"""Rates and means of episodes that share conditions: what such episodes say is less than as many different ones do.

Episodes of equal conditions are one episode played again where the policy draws nothing, and are more alike than
others where it does. Pure functions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri, stdtrit

from isaaclab_arena.results.conditions import draw_of
from isaaclab_arena.results.statistics import (
    Interval,
    clopper_pearson_interval,
    mean_rate_interval,
    success_rate,
    wilson_interval,
)

_IMAGINARY = 0.05


@dataclass(frozen=True, kw_only=True)
class ScoredEpisodes:
    """Episodes that say whether they succeeded.

    Attributes:
        success: 1 and 0. Shape: (num_episodes,), float.
        conditions: What each started from, by its `condition_key`.
    """

    success: np.ndarray
    conditions: Sequence[str]

    def __len__(self) -> int:
        return len(self.success)

    @property
    def successes(self) -> int:
        """Episodes that succeeded."""
        return int(self.success.sum())

    @property
    def rate(self) -> float | None:
        """Their share, None without episodes."""
        return success_rate(self.successes, len(self))

    @cached_property
    def num_distinct(self) -> int:
        """How many different conditions were drawn for them."""
        return len(set(map(draw_of, self.conditions)))

    @property
    def are_distinct(self) -> bool:
        """Whether each has conditions of its own."""
        return self.num_distinct == len(self)

    @cached_property
    def design_effect(self) -> float:
        """How many of them say as much as one with conditions of its own."""
        return design_effect(self.success, self.conditions, is_rate=True)

    def wilson(self) -> Interval | None:
        """Return Wilson's interval of their rate, None without episodes."""
        return wilson_interval(self.successes, len(self), design_effect=self.design_effect)

    def clopper_pearson(self) -> Interval | None:
        """Return the interval of Clopper and Pearson, None without episodes."""
        return clopper_pearson_interval(self.successes, len(self), design_effect=self.design_effect)

    def first_of_each(self) -> "ScoredEpisodes":
        """Return the first episode of each condition."""
        _, first = np.unique(draws_of(self.conditions), return_index=True)
        conditions = [self.conditions[int(at)] for at in first]
        return ScoredEpisodes(success=self.success[first], conditions=conditions)


def together(parts: Sequence[ScoredEpisodes]) -> ScoredEpisodes:
    """Return the episodes of several jobs as those of one."""
    return ScoredEpisodes(
        success=np.concatenate([np.zeros(0), *(part.success for part in parts)]),
        conditions=[condition for part in parts for condition in part.conditions],
    )


def mean_of_tasks(tasks: Sequence[ScoredEpisodes]) -> Interval | None:
    """Return the interval of the mean of tasks' rates, see `mean_rate_interval`; tasks may share conditions."""
    if not all(map(len, tasks)):
        return None
    everything = together(tasks)
    strata = np.repeat(np.arange(len(tasks)), [len(task) for task in tasks])
    effect = design_effect(everything.success, everything.conditions, strata=strata, is_rate=True)
    return mean_rate_interval([(task.successes, len(task)) for task in tasks], design_effect=effect)


def draws_of(conditions: Iterable[str]) -> np.ndarray:
    """Return the number of each episode's draw, see `draw_of`, in order of appearance. Shape: (num_episodes,), int."""
    return _numbered(map(draw_of, conditions))


def design_effect(
    values: np.ndarray, conditions: Sequence[str], *, strata: np.ndarray | None = None, is_rate: bool = False
) -> float:
    """Return how many times the variance of a mean is that of as many episodes with conditions of their own.

    The variance is that of a sample of conditions, from the sums over their episodes (the linearised variance of a
    ratio: Cochran 1977, Sampling Techniques, chapter 6; for intervals of rates Korn & Graubard 1998, Survey Methodology
    24, 193, with the square of Student's quantile over the normal one for few conditions). The result lies between 1
    and what it is where the conditions alone decide: then each of them counts once. The latter also where all episodes
    of a task have the same conditions, and where all values are equal, which both say nothing of the variance; but that
    tasks have to do with each other is taken from values alone.

    A rate near 0 or 1 hangs on a few conditions, whose spread looks too small. So a rate gets two imaginary conditions,
    each a twentieth of a real one: one that always succeeds, and one that never does.

    Args:
        values: What is averaged: 0 and 1, or differences. Shape: (num_episodes,).
        conditions: What each episode started from, by its `condition_key`.
        strata: The task of each episode, where the mean is that of the tasks' means. Shape: (num_episodes,), int.
        is_rate: Whether the values are 0 and 1.
    """
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
    if is_rate:
        squares = np.bincount(pairs // num_groups, np.bincount(members, weights) ** 2) / conditions_of_task
        clustered += _IMAGINARY * float((corrections * squares * ((1.0 - means) ** 2 + means**2)).sum())

    freedom = max(num_groups - len(sizes), int(conditions_of_task.min()) - 1)
    few = float(stdtrit(freedom, 0.975) / ndtri(0.975)) ** 2 if freedom > 0 else math.inf
    return min(max(few * clustered / independent, 1.0), most)


def means_of_draws(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the mean of the values of each draw; where all are different, the values. Shape: (number of draws,)."""
    sizes = np.bincount(draws)
    if sizes.max(initial=0) <= 1:
        return values
    return (np.bincount(draws, values) / np.maximum(sizes, 1))[sizes > 0]


def influences(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return a value per draw: their mean is that of all values, and varies as it does when conditions are drawn anew.

    Where all draws are different these are the values. Shape: (number of draws,).
    """
    sizes = np.bincount(draws)
    if sizes.max(initial=0) <= 1:
        return values
    sums, mean, sizes = np.bincount(draws, values)[sizes > 0], values.mean(), sizes[sizes > 0]
    return mean + len(sizes) * (sums - sizes * mean) / len(values)


def _numbered(texts: Iterable[str]) -> np.ndarray:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], int)
