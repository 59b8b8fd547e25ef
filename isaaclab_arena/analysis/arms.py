"""Read the runs whose jobs are compared: their tables, what they ran and what ran them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean
from isaaclab_arena.results.clusters import ScoredEpisodes
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.results.merge import MergedResults, keys_in, merge_results
from isaaclab_arena.results.stored import check_episodes, read_table, table_of
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.provenance import Provenance
from isaaclab_arena.storage.run.attempts import contents_in_effect, read_attempts
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan, read_run_plan
from isaaclab_arena.storage.videos import videos_of_job

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
