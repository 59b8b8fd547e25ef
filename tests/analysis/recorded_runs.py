"""Runs on disk whose episodes came out as letters say; see `tests.results.evidence.commit_lines`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isaaclab_arena.analysis.arms import Arm, ReadRun, read_run
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.interfaces.episode import EpisodeEvents
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.result_files import write_tables
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


def write_run(
    directory: Path,
    jobs: dict[str, str],
    *,
    moved: dict[int, float] | None = None,
    events: Mapping[int, EpisodeEvents] | None = None,
    **planned_as: Any,
) -> Path:
    """Write a run.

    Args:
        directory: Where to; it is made.
        jobs: Name of a job to the outcomes of its episodes; ``mine:0`` is a task of the suite ``mine``, which is
            another one than all others if it is called ``outside``.
        moved: Episodes that start from another place, to that place.
        events: What happened in episodes of which that is told.
        planned_as: What is said of every job, see `planned`.
    """
    directory.mkdir(parents=True)
    entries = [
        planned(name, index=index, num_episodes=len(outcomes), rank=0, **{"suite": suite_of(name), **planned_as})
        for index, (name, outcomes) in enumerate(jobs.items())
    ]
    write_plan(directory, *entries)
    for name, outcomes in jobs.items():
        lines = [
            dataclasses.replace(
                line,
                variations={"cube.x": (moved or {}).get(line.episode_index, 0.5)},
                events=(events or {}).get(line.episode_index),
            )
            for line in commit_lines(outcomes, job=name)
        ]
        if lines:
            write_lines(directory, lines)
        if "-" not in outcomes:
            write_report(directory, report(name))
    return directory


def failed_by(event: str | None, progress: float = 0.5) -> EpisodeEvents:
    """Return what happened in an episode that one event decided, or none."""
    return EpisodeEvents(progress=progress, decisive=event, seen={} if event is None else {event: (1, 1)})


def suite_of(name: str) -> SuiteMember | None:
    """Return what the job ``mine:0`` is in the suite ``mine``, None for a name without a colon."""
    entry, colon, task = name.partition(":")
    return SuiteMember(name=entry, suite="garden" if entry == "outside" else "kitchen", task=task) if colon else None


def run_of(directory: Path, jobs: dict[str, str], **how: Any) -> ReadRun:
    """Write a run and read it."""
    return read_run(write_run(directory, jobs, **how))


def arm_of(directory: Path, outcomes: str, **how: Any) -> Arm:
    """Write a run of one job and return that."""
    return run_of(directory, {"lift": outcomes}, **how).arms()["lift"]


def write_all_tables(directory: Path) -> None:
    """Write the tables that a run has when it is over."""
    write_tables(directory, merge_results(directory))
