"""Find the pairs: episodes of two jobs that truly started from the same conditions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from isaaclab_arena.analysis.arms import Arm, EpisodeColumns
from isaaclab_arena.results.stopping.counts import PairCounts

_ANY_BACKEND = "backend"


@dataclass(frozen=True, kw_only=True)
class UnequalConditions:
    """An episode of both jobs that started from other conditions in each.

    Attributes:
        episode_index: The episode.
        names: The conditions that differ, such as ``cube.position``.
    """

    episode_index: int
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MatchedEpisodes:
    """The episodes of two jobs, paired.

    Attributes:
        first: The pairs' episodes of the first job.
        second: Those of the second job, in the same order.
        unequal_sides: Episodes of each job that are no pairs, because their conditions differ; in the same order.
        only_first: How many episodes the first job alone has.
        only_second: How many the second job alone has.
    """

    first: EpisodeColumns
    second: EpisodeColumns
    unequal_sides: tuple[EpisodeColumns, EpisodeColumns]
    only_first: int = 0
    only_second: int = 0

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def unequal(self) -> tuple[UnequalConditions, ...]:
        """The episodes that are no pairs, with what differs; found when it is asked for, because it takes long."""
        return tuple(_unequal(*self.unequal_sides))

    @property
    def conditions(self) -> list[str]:
        """What each pair started from, see `conditions_of_pairs`."""
        return conditions_of_pairs(self.first, self.second)

    @property
    def differences(self) -> np.ndarray:
        """Success of each pair's first episode less that of its second; NaN for an error. Shape: (number of pairs,)."""
        return self.first.success - self.second.success

    def without_errors(self) -> "MatchedEpisodes":
        """Return the pairs in which both episodes say whether they succeeded."""
        return self.where(np.isfinite(self.first.success) & np.isfinite(self.second.success))

    def where(self, mask: np.ndarray) -> "MatchedEpisodes":
        """Return some of the pairs. Shape of ``mask``: (number of pairs,)."""
        return replace(self, first=self.first.at(mask), second=self.second.at(mask))

    @property
    def counts(self) -> PairCounts:
        """How the pairs without an error came out."""
        pairs = self.without_errors()
        first, second = pairs.first.success > 0, pairs.second.success > 0
        return PairCounts(
            both=int((first & second).sum()),
            only_first=int((first & ~second).sum()),
            only_second=int((~first & second).sum()),
            neither=int((~first & ~second).sum()),
        )


def differences_of_tasks(first: Arm, second: Arm) -> tuple[str, ...]:
    """Return what keeps two jobs from being paired: that they are not the same task. Empty where they are."""
    return tuple(
        f"{name} {_shown(before)} and {_shown(now)}" for name, before, now in _facts(first, second) if before != now
    )


def match(first: Arm, second: Arm, *, prefix_only: bool = False) -> MatchedEpisodes:
    """Pair the episodes of two jobs of the same task, see `differences_of_tasks`.

    Two episodes are a pair if they have the same index and the conditions that were applied are equal. Where an
    environment says no conditions, the seed of the episode stands for them.

    Args:
        first: One job.
        second: The other.
        prefix_only: Whether to stop at the first episode that either job has not finished, as for runs that are still
            going: otherwise the episodes that end soon would weigh too much.
    """
    indices, at_first, at_second = np.intersect1d(
        first.episodes.index, second.episodes.index, assume_unique=True, return_indices=True
    )
    if prefix_only:
        at_first, at_second = (at[indices == np.arange(len(indices))] for at in (at_first, at_second))
    one, other = first.episodes.at(at_first), second.episodes.at(at_second)
    same = same_conditions(one, other)
    return MatchedEpisodes(
        first=one.at(same),
        second=other.at(same),
        unequal_sides=(one.at(~same), other.at(~same)),
        only_first=len(first.episodes) - len(one),
        only_second=len(second.episodes) - len(one),
    )


def same_conditions(first: EpisodeColumns, second: EpisodeColumns) -> np.ndarray:
    """Return which episodes of equal index started from the same conditions. Shape: (number of episodes,), bool."""
    return first.drawn == second.drawn


def conditions_of_pairs(first: EpisodeColumns, second: EpisodeColumns) -> list[str]:
    """Return what each pair started from; equal too where both episodes of a pair began and went as another's did."""
    alike = (first.began != first.drawn) & (second.began != second.drawn)
    return np.where(alike, first.began + "|" + second.began, first.drawn).tolist()


def _facts(first: Arm, second: Arm) -> Iterator[tuple[str, Any, Any]]:
    one, other = first.entry, second.entry
    yield "environment", one.config.environment, other.config.environment
    yield "task", one.task, other.task
    yield "embodiment", one.embodiment, other.embodiment
    yield "object", one.object, other.object
    told = {"object", "embodiment", _ANY_BACKEND}
    before, now = one.config.environment_args, other.config.environment_args
    for name in sorted((before.keys() | now.keys()) - told):
        yield name, before.get(name), now.get(name)


def _shown(value: Any) -> str:
    return "none" if value is None else f"'{value}'" if isinstance(value, str) else json.dumps(value)


def _unequal(first: EpisodeColumns, second: EpisodeColumns) -> Iterator[UnequalConditions]:
    for index, before, now in zip(first.index.tolist(), first.conditions, second.conditions, strict=True):
        one, other = json.loads(before), json.loads(now)
        names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        yield UnequalConditions(episode_index=index, names=tuple(names) or ("episode_seed",))


def same_tasks(
    first: Mapping[str, Mapping[str, Arm]], second: Mapping[str, Mapping[str, Arm]]
) -> list[tuple[Arm, Arm]]:
    """Return the jobs of the same task of two suites of one name, where each side has one; none otherwise."""
    if len(first) != 1 or len(second) != 1:
        return []
    one, other = next(iter(first.values())), next(iter(second.values()))
    named = {arm.entry.config.suite.suite for arm in (*one.values(), *other.values()) if arm.entry.config.suite}
    return [(one[task], arm) for task, arm in other.items() if task in one] if len(named) == 1 else []


def with_tasks(
    names: Mapping[str, str],
    *,
    baseline: Mapping[str, Mapping[str, Arm]],
    candidate: Mapping[str, Mapping[str, Arm]],
) -> dict[str, str]:
    """Return names of jobs that belong together, where some were those of suites, each of whose tasks has a job.

    Args:
        names: Jobs or suites of the baseline to those of the candidate.
        baseline: The suites of the baseline, each with its jobs by task.
        candidate: Those of the candidate.
    """
    mapped: dict[str, str] = {}
    for old, new in names.items():
        if old in baseline and new in candidate:
            tasks = (task for task in baseline[old] if task in candidate[new])
            mapped |= {baseline[old][task].entry.name: candidate[new][task].entry.name for task in tasks}
        else:
            mapped[old] = new
    return mapped
