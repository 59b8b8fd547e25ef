"""Choose the episodes of a run that are filmed afterwards: by how they ended, or by how they ended in another run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np

from isaaclab_arena.analysis.arms import Arm, differences_of_tasks, match, named_arm, read_run
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.layout import RUN_PLAN_FILE, job_directory
from isaaclab_arena.storage.run.commits import CommitLine, read_commits
from isaaclab_arena.storage.run.run_plan import read_run_plan

_BASELINE, _JOB = "--baseline", "--job"


class Choice(StrEnum):
    """Which finished episodes are filmed."""

    ALL = "all"
    ONE = "one"
    FAILURES = "failures"
    SUCCESSES = "successes"
    REASONS = "reasons"
    DISCORDANT = "discordant"


FILMS_OF_A_REASON = 3
"""Failures of each reason that are filmed, as many as the report shows."""


def chosen_jobs(run: Path, jobs: Sequence[str]) -> list[str]:
    """Return the jobs of a run that are meant, in the order of its plan.

    Args:
        run: Its directory.
        jobs: Their names; none for all that were to run.

    Raises:
        ConfigError: If there is no run, or no such job in it.
    """
    names = [job.name for job in read_run_plan(run).jobs if job.is_to_run]
    problems = [
        Problem(f"there is no job '{job}' in {run}{did_you_mean(job, names)}", key=_JOB)
        for job in jobs
        if job not in names
    ]
    if problems:
        raise ConfigError(problems)
    return [name for name in names if name in jobs or not jobs]


def episodes_by_outcome(run: Path, jobs: Iterable[str], choice: Choice) -> dict[str, list[int]]:
    """Return the finished episodes of each job that succeeded, that did not, all, or some of them, ascending.

    Args:
        run: Directory of the run.
        jobs: Names of its jobs.
        choice: Which; an error and an episode whose success is not measured count as failures, as they do for
            ``--video_episodes failures``. The one of a job is its first failure, else its first success, and an error
            only where there is nothing else. For reasons, it is the first failures, `FILMS_OF_A_REASON` at most, of
            each event that decided them, without errors.
    """
    return {job: list(_by_outcome(read_commits(job_directory(run, job), job).lines, choice)) for job in jobs}


def _by_outcome(lines: Sequence[CommitLine], choice: Choice) -> Iterator[int]:
    if choice is Choice.ONE:
        best_first = sorted(lines, key=lambda line: (line.outcome is Outcome.ERROR, line.success is True))
        lines = best_first[:1]
    elif choice is Choice.REASONS:
        yield from _by_reason(lines)
        return
    for line in lines:
        if choice in {Choice.ALL, Choice.ONE} or (line.success is True) == (choice is Choice.SUCCESSES):
            yield line.episode_index


def _by_reason(lines: Sequence[CommitLine]) -> list[int]:
    groups: dict[str | None, list[int]] = {}
    for line in sorted(lines, key=lambda line: line.episode_index):
        if line.success is False and line.outcome is not Outcome.ERROR:
            groups.setdefault(line.events and line.events.decisive, []).append(line.episode_index)
    return sorted(index for indices in groups.values() for index in indices[:FILMS_OF_A_REASON])


def discordant_episodes(run: Path, jobs: Sequence[str], baseline: str) -> dict[str, list[int]]:
    """Return the episodes that ended otherwise than those of a baseline that started from the same conditions.

    Args:
        run: Directory of the run.
        jobs: Names of its jobs.
        baseline: The directory of another run, whose job of the same name is compared with; its only job, where both
            are one. Or a job of this run, whose own episodes then belong to the answer too.

    Raises:
        ConfigError: If there is no such baseline, or no job can be paired with it.
    """
    arms = read_run(run).arms()
    if (Path(baseline) / RUN_PLAN_FILE).is_file():
        pairs = list(_pairs_with_run([arms[job] for job in jobs], read_run(Path(baseline)).arms()))
    else:
        other = named_arm(arms, baseline, option=_BASELINE)
        pairs = [(arms[job], other) for job in jobs if job != baseline]
    found: dict[str, set[int]] = {}
    for first, second in _of_one_task(pairs, baseline):
        indices = _discordant(first, second)
        found.setdefault(first.entry.name, set()).update(indices)
        if second.directory == first.directory:
            found.setdefault(second.entry.name, set()).update(indices)
    return {job: sorted(found[job]) for job in arms if job in found}


def _pairs_with_run(chosen: Sequence[Arm], others: Mapping[str, Arm]) -> Iterable[tuple[Arm, Arm]]:
    if len(chosen) == len(others) == 1:
        yield chosen[0], next(iter(others.values()))
        return
    for arm in chosen:
        if arm.entry.name in others:
            yield arm, others[arm.entry.name]


def _of_one_task(pairs: Sequence[tuple[Arm, Arm]], baseline: str) -> list[tuple[Arm, Arm]]:
    """Return the pairs of jobs of the same task; refuse if there is none."""
    differences = [differences_of_tasks(*pair) for pair in pairs]
    comparable = [pair for pair, different in zip(pairs, differences, strict=True) if not different]
    if not comparable:
        reasons = [
            f"{first.label} is no pair of {second.label}: {', '.join(different)}"
            for (first, second), different in zip(pairs, differences, strict=True)
        ]
        problem = "; ".join([f"no job can be compared with '{baseline}'", *reasons])
        raise ConfigError(Problem(problem, key=_BASELINE))
    return comparable


def _discordant(first: Arm, second: Arm) -> list[int]:
    pairs = match(first, second).without_errors()
    return pairs.first.index[np.not_equal(pairs.first.success, pairs.second.success)].tolist()
