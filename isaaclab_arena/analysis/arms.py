"""The runs whose jobs are compared, and the pairs of episodes that started from the same conditions."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.results import statistics
from isaaclab_arena.results.merge import Tables, keys_in, read
from isaaclab_arena.results.stopping import PairCounts
from isaaclab_arena.storage.contents import Contents, Provenance
from isaaclab_arena.storage.ledger import PlanEntry, RunPlan, contents_in_effect, read_attempts, videos_of_job

# Read the runs whose jobs are compared: their tables, their plans, and their versions and machines.


@dataclass(frozen=True, kw_only=True)
class EpisodeColumns:
    """Finished episodes, one array of shape (num_episodes,) per measure, ordered by ``index``."""

    index: np.ndarray  # position in the job, ascending, int64
    drawn: np.ndarray  # drawn initial conditions, see `condition_key`
    began: np.ndarray  # the same, but also equal for episodes with equal starts and results despite different seeds
    success: np.ndarray  # 1 and 0; NaN for an error, or if not measured
    length: np.ndarray  # control steps
    episode_return: np.ndarray  # sum of the rewards; NaN if not a finite number
    conditions: np.ndarray  # initial conditions, as JSON
    metrics: np.ndarray  # further measures, as JSON
    events: np.ndarray  # as JSON; None if not reported

    def __len__(self) -> int:
        return len(self.index)

    def at(self, positions: np.ndarray) -> "EpisodeColumns":
        """Return the episodes at positions or at a boolean mask."""
        return EpisodeColumns(**{name: column[positions] for name, column in vars(self).items()})

    @property
    def scored(self) -> statistics.ScoredEpisodes:
        """The episodes with a known success."""
        known = np.isfinite(self.success)
        return statistics.ScoredEpisodes(success=self.success[known], conditions=self.began[known].tolist())


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison: a job of a run."""

    directory: Path  # of the run
    entry: PlanEntry  # the planned job
    contents: Contents | None  # evaluated contents; None if no file records them
    provenance: Provenance  # versions and machine
    episodes: EpisodeColumns
    planned: int | None  # number of episodes; None if steps decide
    metrics: tuple[str, ...] = ()  # the declared ones
    asked: tuple[str, ...] = ()  # comparisons and bars of the run that could stop the job at any episode

    @property
    def label(self) -> str:
        """The name in messages: the run's directory and the job."""
        return f"{self.directory}: {self.entry.name}"

    @property
    def num_missing(self) -> int:
        """Number of planned episodes that have not finished."""
        return 0 if self.planned is None else max(0, self.planned - len(self.episodes))

    @property
    def way_to_finish(self) -> str:
        """The command that finishes the job, in words."""
        return f"finish it with isaaclab-arena resume {shlex.quote(str(self.directory))}"

    @property
    def measures_success(self) -> bool:
        """Whether any episode has a known success."""
        return bool(np.isfinite(self.episodes.success).any())

    @cached_property
    def videos(self) -> Mapping[int, tuple[Path, ...]]:
        """Map each filmed episode to its films."""
        found: dict[int, tuple[Path, ...]] = {}
        for name, path in videos_of_job(self.directory, self.entry.name):
            found[name.episode_index] = (*found.get(name.episode_index, ()), path)
        return found


@dataclass(frozen=True, kw_only=True)
class ReadRun:
    """The jobs of a run as sides of comparisons."""

    directory: Path
    plan: RunPlan
    arms: Mapping[str, Arm]  # by name, in the plan's order, without skipped jobs

    def suites(self) -> dict[str, dict[str, Arm]]:
        """Return the suites by name, each with its jobs by task, in the plan's order."""
        found: dict[str, dict[str, Arm]] = {}
        for arm in self.arms.values():
            if (member := arm.entry.config.suite) is not None:
                found.setdefault(member.name, {})[member.task] = arm
        return found


_EPISODE_COLUMNS = ("job", "episode_index", "environment", "object", "episode_seed", "success", "length", "return",
                    "conditions", "metrics", "events", "start", "beyond_decision")  # fmt: skip


def read_run(directory: Path, *, merged: Tables | None = None) -> ReadRun:
    """Read a run from `merged`, its current tables, or else the files of its ranks. StorageError if unreadable."""
    tables = read(directory, episode_columns=_EPISODE_COLUMNS) if merged is None else merged
    attempts, _ = read_attempts(directory, tables.plan.run_id)
    # A job that stopped on an answer has only the episodes of that answer.
    jobs, episodes = tables.jobs, tables.episodes
    if tables.plan.questions:
        needed = jobs["episodes"] + jobs["missing"]
        jobs = jobs.assign(planned=jobs["planned"].mask(jobs["decision"].notna(), needed))
        episodes = pd.DataFrame(episodes[~episodes["beyond_decision"]])

    planned = dict(zip(jobs["name"].tolist(), jobs["planned"].to_numpy(object, na_value=None), strict=True))
    metrics = tables.metrics.groupby("job", sort=False)["metric"].agg(tuple).to_dict()
    contents = contents_in_effect(tables.plan.jobs, attempts)
    # The column `start` marks episodes that share a start. Without it the key is the drawn condition alone.
    drawn = keys_in(episodes.drop(columns="start", errors="ignore"))
    success, length, returns = (
        episodes[name].to_numpy(float, na_value=np.nan) for name in ("success", "length", "return")
    )
    nothing = np.full(len(episodes), None)
    columns = EpisodeColumns(
        index=episodes["episode_index"].to_numpy(np.int64),
        drawn=np.array(drawn, object),
        began=np.array(keys_in(episodes) if "start" in episodes else drawn, object),
        success=success,
        length=length,
        episode_return=returns,
        conditions=episodes["conditions"].to_numpy(object),
        metrics=episodes["metrics"].to_numpy(object),
        events=episodes["events"].to_numpy(object, na_value=None) if "events" in episodes else nothing,
    )
    by_job = {str(job): columns.at(at) for job, at in episodes.groupby("job", sort=False).indices.items()}
    arms = {
        entry.name: Arm(
            directory=directory,
            entry=entry,
            contents=contents[entry.name],
            provenance=tables.plan.provenance,
            episodes=by_job.get(entry.name, columns.at(np.zeros(0, np.intp))),
            planned=planned[entry.name],
            metrics=metrics.get(entry.name, ()),
            asked=tuple(each.name for each in tables.plan.questions if entry.name in each.jobs),
        )
        for entry in tables.plan.jobs
        if entry.is_to_run
    }
    return ReadRun(directory=directory, plan=tables.plan, arms=arms)


def named_arm(arms: Mapping[str, Arm], name: str, *, option: str) -> Arm:
    """Return the job `name`. ConfigError with the key `option` if there is none."""
    if name not in arms:
        raise ConfigError(Problem(f"there is no job '{name}'{did_you_mean(name, arms)}", key=option))
    return arms[name]


# Find the pairs: episodes of two jobs with equal initial conditions.


@dataclass(frozen=True, kw_only=True)
class UnequalConditions:
    """An episode of both jobs with different initial conditions."""

    episode_index: int
    names: tuple[str, ...]  # differing conditions, such as ``cube.position``


@dataclass(frozen=True, kw_only=True)
class MatchedEpisodes:
    """The episodes of two jobs, paired."""

    # Both sides have the same order.
    first: EpisodeColumns
    second: EpisodeColumns
    # Episodes of each job with the same index but different conditions, in the same order.
    unequal_sides: tuple[EpisodeColumns, EpisodeColumns]
    only_first: int = 0  # number of episodes that only the first job has
    only_second: int = 0  # number of episodes that only the second job has

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def unequal(self) -> tuple[UnequalConditions, ...]:
        """The unpaired episodes with their differing conditions; computed on demand, because it is slow."""
        first, second = self.unequal_sides
        found = []
        for index, before, now in zip(first.index.tolist(), first.conditions, second.conditions, strict=True):
            one, other = json.loads(before), json.loads(now)
            names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
            found.append(UnequalConditions(episode_index=index, names=tuple(names) or ("episode_seed",)))
        return tuple(found)

    @property
    def conditions(self) -> list[str]:
        """The conditions of each pair; also equal if both episodes share start and result with another pair's."""
        first, second = self.first, self.second
        alike = (first.began != first.drawn) & (second.began != second.drawn)
        return np.where(alike, first.began + "|" + second.began, first.drawn).tolist()

    @property
    def differences(self) -> np.ndarray:
        """Success of each pair, first minus second; NaN for an error. Shape: (num_pairs,)."""
        return self.first.success - self.second.success

    def without_errors(self) -> "MatchedEpisodes":
        """Return the pairs in which both episodes have a known success."""
        known = np.isfinite(self.first.success) & np.isfinite(self.second.success)
        return replace(self, first=self.first.at(known), second=self.second.at(known))

    @property
    def counts(self) -> PairCounts:
        """Outcomes of the pairs without an error."""
        pairs = self.without_errors()
        first, second = pairs.first.success > 0, pairs.second.success > 0
        return PairCounts(
            both=int((first & second).sum()),
            only_first=int((first & ~second).sum()),
            only_second=int((~first & second).sum()),
            neither=int((~first & ~second).sum()),
        )


def differences_of_tasks(first: Arm, second: Arm) -> tuple[str, ...]:
    """Return the differences that prevent pairing two jobs, empty if they are the same task."""
    one, other = first.entry, second.entry
    facts: list[tuple[str, Any, Any]] = [
        ("environment", one.config.environment, other.config.environment),
        ("task", one.task, other.task),
        ("embodiment", one.embodiment, other.embodiment),
        ("object", one.object, other.object),
    ]
    # The backend is no part of the task, so jobs on different backends are comparable.
    before, now = one.config.environment_args, other.config.environment_args
    names = sorted((before.keys() | now.keys()) - {"object", "embodiment", "backend"})
    facts += [(name, before.get(name), now.get(name)) for name in names]
    found = []
    for name, *sides in facts:
        if sides[0] != sides[1]:
            was, is_now = (
                "none" if side is None else f"'{side}'" if isinstance(side, str) else json.dumps(side) for side in sides
            )
            found.append(f"{name} {was} and {is_now}")
    return tuple(found)


def match(
    first: Arm, second: Arm, *, prefix_only: bool = False, alike: Callable[[str, str], bool] | None = None
) -> MatchedEpisodes:
    """Pair the episodes of two jobs of the same task (see `differences_of_tasks`) by index and applied conditions."""
    # `prefix_only` ends at the first episode that either job lacks, for runs in progress: otherwise episodes that end
    # early would have too much weight. Without applied conditions the episode's seed identifies them. `alike` decides
    # whether the applied conditions of two episodes, as JSON, make a pair; None asks for equal ones.
    indices, at_first, at_second = np.intersect1d(
        first.episodes.index, second.episodes.index, assume_unique=True, return_indices=True
    )
    if prefix_only:
        at_first, at_second = (at[indices == np.arange(len(indices))] for at in (at_first, at_second))
    one, other = first.episodes.at(at_first), second.episodes.at(at_second)
    same = one.drawn == other.drawn
    if alike is not None:
        same = np.array(list(map(alike, one.conditions, other.conditions)), bool)
    return MatchedEpisodes(
        first=one.at(same),
        second=other.at(same),
        unequal_sides=(one.at(~same), other.at(~same)),
        only_first=len(first.episodes) - len(one),
        only_second=len(second.episodes) - len(one),
    )


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The difference of two success rates over pairs of episodes, first minus second."""

    counts: PairCounts  # outcomes of the pairs, without those that have an error
    distinct: int  # distinct initial conditions of these pairs
    difference: float  # difference of the rates
    interval: statistics.Interval  # of the difference (Newcombe's method 10)
    exact_p: float  # two-sided p-value of McNemar's exact test; `sign_flip_p` for pairs that share conditions
    mid_p: float  # the mid-p value of the same test
    design_effect: float  # number of the pairs that carry as much information as one with its own conditions


def paired_difference(
    matched: Sequence[MatchedEpisodes], *, conditions: Sequence[str] | None = None, confidence: float = 0.95
) -> PairedDifference | None:
    """Return the difference over the pairs of one or several tasks without an error, None without such a pair."""
    # Episodes with equal conditions are not independent, so the interval uses the design effect, and the tests flip
    # signs of whole conditions. `conditions` are those of the pairs, by default their own.
    pairs = [each.without_errors() for each in matched]
    values = np.concatenate([each.differences for each in pairs])
    if conditions is None:
        conditions = [condition for each in pairs for condition in each.conditions]
    each_counts = [vars(each.counts) for each in pairs]
    counts = PairCounts(**{name: sum(own[name] for own in each_counts) for name in each_counts[0]})
    effect, draws = statistics.design_effect(values, conditions), statistics.draws_of(conditions)
    interval = statistics.paired_difference_interval(counts, confidence=confidence, design_effect=effect)
    if interval is None or counts.difference is None:
        return None
    exact_p, mid_p = statistics.sign_flip_p(values, draws)
    return PairedDifference(
        counts=counts,
        distinct=len({*draws.tolist()}),
        difference=counts.difference,
        interval=interval,
        exact_p=exact_p,
        mid_p=mid_p,
        design_effect=effect,
    )


def same_tasks(
    first: Mapping[str, Mapping[str, Arm]], second: Mapping[str, Mapping[str, Arm]]
) -> list[tuple[Arm, Arm]]:
    """Return the pairs of jobs with the same task, if each side has one suite and both have the same name."""
    if len(first) != 1 or len(second) != 1:
        return []
    one, other = next(iter(first.values())), next(iter(second.values()))
    named = {arm.entry.config.suite.suite for arm in (*one.values(), *other.values()) if arm.entry.config.suite}
    return [(one[task], arm) for task, arm in other.items() if task in one] if len(named) == 1 else []
