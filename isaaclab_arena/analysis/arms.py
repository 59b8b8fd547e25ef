"""The runs whose jobs are compared, and the pairs of episodes that started from the same conditions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.results.merge import MergedResults, check_episodes, keys_in, merge_results, read_table, table_of
from isaaclab_arena.results.statistics import ScoredEpisodes
from isaaclab_arena.results.stopping import PairCounts
from isaaclab_arena.storage.contents import Contents, Provenance
from isaaclab_arena.storage.run_plan import PlanEntry, RunPlan, contents_in_effect, read_attempts, read_run_plan
from isaaclab_arena.storage.videos import videos_of_job

# Read the runs whose jobs are compared: their tables, what they ran and what ran them.

_COLUMNS = [
    *("job", "episode_index", "environment", "object", "episode_seed", "success", "length", "return", "conditions"),
    "metrics",
]


@dataclass(frozen=True, kw_only=True)
class EpisodeColumns:
    """Finished episodes, one array per measure, all in the order of ``index``.

    Attributes:
        index: Position in the job, ascending. Shape: (num_episodes,), int64, like all.
        drawn: What the episode started from as it was drawn, see `condition_key`.
        began: The same, but equal too for episodes that began and went alike although their seeds differ.
        success: 1 and 0; NaN for an error and where it is not measured.
        length: Control steps.
        episode_return: Sum of the rewards, NaN where that is not a number.
        conditions: What the episode started from, as JSON.
        metrics: Further measures, as JSON.
        events: What happened, as JSON; None where that is not told.
    """

    index: np.ndarray
    drawn: np.ndarray
    began: np.ndarray
    success: np.ndarray
    length: np.ndarray
    episode_return: np.ndarray
    conditions: np.ndarray
    metrics: np.ndarray
    events: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def at(self, positions: np.ndarray) -> "EpisodeColumns":
        """Return some of the episodes.

        Args:
            positions: Which, as NumPy takes it: positions, or a mask.
        """
        return EpisodeColumns(**{name: column[positions] for name, column in vars(self).items()})

    @property
    def scored(self) -> ScoredEpisodes:
        """Those that say whether they succeeded."""
        known = np.isfinite(self.success)
        return ScoredEpisodes(success=self.success[known], conditions=self.began[known].tolist())


_NONE = EpisodeColumns(
    index=np.zeros(0, np.int64),
    drawn=np.zeros(0, object),
    began=np.zeros(0, object),
    success=np.zeros(0),
    length=np.zeros(0),
    episode_return=np.zeros(0),
    conditions=np.zeros(0, object),
    metrics=np.zeros(0, object),
    events=np.zeros(0, object),
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison: a job of a run.

    Attributes:
        directory: The run's directory.
        entry: What was planned.
        contents: What it evaluated, None where nobody wrote it down.
        provenance: What ran it.
        episodes: Its finished episodes.
        planned: How many episodes it should have, None where steps decide.
        asked: Names of the comparisons and bars of its run, which could stop it at any episode.
    """

    directory: Path
    entry: PlanEntry
    contents: Contents | None
    provenance: Provenance
    episodes: EpisodeColumns
    planned: int | None
    asked: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How messages call it: the run's directory and the job."""
        return f"{self.directory}: {self.entry.name}"

    @property
    def num_missing(self) -> int:
        """Planned episodes that have not finished."""
        return 0 if self.planned is None else max(0, self.planned - len(self.episodes))

    @property
    def measures_success(self) -> bool:
        """Whether any episode says whether it succeeded."""
        return bool(np.isfinite(self.episodes.success).any())

    @cached_property
    def videos(self) -> Mapping[int, tuple[Path, ...]]:
        """The films of each episode that has any, by its index."""
        found: dict[int, tuple[Path, ...]] = {}
        for name, path in videos_of_job(self.directory, self.entry.name):
            found[name.episode_index] = (*found.get(name.episode_index, ()), path)
        return found


@dataclass(frozen=True, kw_only=True)
class ReadRun:
    """A run that was read.

    Attributes:
        directory: Its directory.
        plan: What it set out to do.
        contents: What each job evaluated, by its name.
        planned: How many episodes each job should have, by its name; None where steps decide.
        episodes: The finished episodes of each job that has any, by its name.
    """

    directory: Path
    plan: RunPlan
    contents: Mapping[str, Contents | None]
    planned: Mapping[str, int | None]
    episodes: Mapping[str, EpisodeColumns]

    def arms(self) -> dict[str, Arm]:
        """Return its jobs by name, in order of the plan; those that were not to run are left out."""
        return {
            entry.name: Arm(
                directory=self.directory,
                entry=entry,
                contents=self.contents[entry.name],
                provenance=self.plan.provenance,
                episodes=self.episodes.get(entry.name, _NONE),
                planned=self.planned[entry.name],
                asked=tuple(each.name for each in self.plan.questions if entry.name in each.jobs),
            )
            for entry in self.plan.jobs
            if entry.is_to_run
        }

    def suites(self) -> dict[str, dict[str, Arm]]:
        """Return its suites by name, each with its jobs by task, in order of the plan."""
        found: dict[str, dict[str, Arm]] = {}
        for arm in self.arms().values():
            if (member := arm.entry.config.suite) is not None:
                found.setdefault(member.name, {})[member.task] = arm
        return found


def read_run(directory: Path, *, beyond_decisions: bool = False, merged: MergedResults | None = None) -> ReadRun:
    """Read a run: its tables, or where these are old what its ranks have written.

    Args:
        directory: The run's directory.
        merged: Its results, where they have been read already.
        beyond_decisions: Whether all finished episodes are wanted of a job that stopped because the answer was in;
            otherwise those that the answer rests on.

    Raises:
        ConfigError: If there is no run.
        StorageError: If its files cannot be read.
    """
    plan = read_run_plan(directory) if merged is None else merged.plan
    attempts, _ = read_attempts(directory, plan.run_id)
    tables = _tables(directory, plan) if merged is None else (merged.jobs, merged.episodes)
    jobs, episodes = tables if beyond_decisions or not plan.questions else _of_decisions(tables)
    return ReadRun(
        directory=directory,
        plan=plan,
        contents=contents_in_effect(plan.jobs, attempts),
        planned=_planned(jobs),
        episodes={str(job): _columns(pd.DataFrame(part)) for job, part in episodes.groupby("job", sort=False)},
    )


def named_arm(arms: Mapping[str, Arm], name: str, *, option: str) -> Arm:
    """Return the job of a name.

    Args:
        arms: The jobs of a run.
        name: The job's.
        option: Where the user has named it, for the message.

    Raises:
        ConfigError: If there is no such job.
    """
    if name not in arms:
        raise ConfigError(Problem(f"there is no job '{name}'{did_you_mean(name, arms)}", key=option))
    return arms[name]


def _of_decisions(merged: tuple[pd.DataFrame, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables without the episodes beyond decisions, and with as many planned as the decisions needed."""
    jobs, episodes = merged
    needed = jobs["episodes"] + jobs["missing"]
    planned = jobs["planned"].mask(jobs["decision"].notna(), needed)
    return jobs.assign(planned=planned), pd.DataFrame(episodes[~episodes["beyond_decision"]])


def _planned(jobs: pd.DataFrame) -> dict[str, int | None]:
    numbers = jobs["planned"].to_numpy(float, na_value=np.nan)
    return {
        str(name): None if np.isnan(number) else int(number) for name, number in zip(jobs["name"], numbers, strict=True)
    }


def _columns(episodes: pd.DataFrame) -> EpisodeColumns:
    def numbers(name: str) -> np.ndarray:
        return episodes[name].to_numpy(float, na_value=np.nan)

    drawn = keys_in(episodes.drop(columns="start", errors="ignore"))
    order = np.argsort(episodes["episode_index"].to_numpy(np.int64), kind="stable")
    return EpisodeColumns(
        index=episodes["episode_index"].to_numpy(np.int64),
        drawn=np.array(drawn, object),
        began=np.array(keys_in(episodes) if "start" in episodes else drawn, object),
        success=numbers("success"),
        length=numbers("length"),
        episode_return=numbers("return"),
        conditions=episodes["conditions"].to_numpy(object),
        metrics=episodes["metrics"].to_numpy(object),
        events=_told(episodes),
    ).at(order)


def _told(episodes: pd.DataFrame) -> np.ndarray:
    if "events" not in episodes:
        return np.full(len(episodes), None)
    return episodes["events"].to_numpy(object, na_value=None)


def _tables(directory: Path, plan: RunPlan) -> tuple[pd.DataFrame, pd.DataFrame]:
    tables = _stored_tables(directory, plan) if tables_are_current(directory) else None
    if tables is None:
        merged = merge_results(directory)
        tables = merged.jobs, merged.episodes
    return tables


def _stored_tables(directory: Path, plan: RunPlan) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    of_jobs = ["name", "planned", *(["episodes", "missing", "decision"] if plan.questions else [])]
    of_episodes = [*_COLUMNS, "seed", "outcome", *(["beyond_decision"] if plan.questions else [])]
    try:
        jobs = read_table(directory / "results.parquet", of_jobs)
        episodes = read_table(directory / "episodes.parquet", of_episodes, optional=["events", "start"])
        check_episodes(table_of(plan, directory)["jobs"], episodes, directory)
    except (StorageError, ValueError, KeyError, TypeError):
        # Tables can be rebuilt, so a damaged one is no reason to give up.
        return None
    return jobs, episodes


# Find the pairs: episodes of two jobs that truly started from the same conditions.

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
