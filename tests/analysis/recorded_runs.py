"""Runs on disk whose episodes came out as letters say; see `tests.results.evidence.commit_lines`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isaaclab_arena.analysis.arms import Arm, ReadRun, read_run
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.interfaces.episode import EpisodeEvents
from isaaclab_arena.results.merge import merge_results, write_tables
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


def write_run(
    directory: Path,
    jobs: dict[str, str],
    *,
    moved: dict[int, float] | None = None,
    told: bool = True,
    condition: str = "cube.x",
    own_starts: bool = False,
    starts: int | None = None,
    first_seed: int = 0,
    events: Mapping[int, EpisodeEvents] | None = None,
    **planned_as: Any,
) -> Path:
    """Write a run: name of a job to the outcomes of its episodes; ``mine:0`` is a task of the suite ``mine``.

    Args:
        directory: Where to; it is made where it is not there.
        jobs: See above; the suite is another one than all others if it is called ``outside``.
        moved: Episodes that start from another place, to that place, beside their index.
        told: Whether episodes say what they start from.
        condition: The condition that says it.
        own_starts: Whether each job starts from other conditions than all others.
        starts: How many starts a job plays in turns; None where each episode has one of its own.
        first_seed: Seed of the first episode.
        events: What happened in episodes of which that is told.
        planned_as: What is said of every job, see `planned`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    entries = [
        planned(name, index=index, num_episodes=len(outcomes), rank=0, **suite_of(name) | planned_as)
        for index, (name, outcomes) in enumerate(jobs.items())
    ]
    write_plan(directory, *entries)
    for number, (name, outcomes) in enumerate(jobs.items()):
        begin = 1_000 * number * own_starts
        lines = [
            dataclasses.replace(
                line,
                conditions={condition: begin + index % (starts or len(outcomes)) + (moved or {}).get(index, 0.5)}
                if told
                else {},
                episode_seed=index + first_seed,
                seed=planned_as.get("seed", line.seed),
                events=(events or {}).get(index),
            )
            for line in commit_lines(outcomes, job=name)
            for index in [line.episode_index]
        ]
        if lines:
            write_lines(directory, lines)
        if "-" not in outcomes:
            write_report(directory, report(name))
    return directory


def failed_by(event: str | None, progress: float = 0.5) -> EpisodeEvents:
    """Events of an episode that one event decided, or no events."""
    return EpisodeEvents(progress=progress, decisive=event, seen={} if event is None else {event: (1, 1)})


def suite_of(name: str) -> dict[str, Any]:
    """Planned job ``mine:0`` of the suite ``mine``; None for a name without a colon."""
    entry, colon, task = name.partition(":")
    member = SuiteMember(name=entry, suite="garden" if entry == "outside" else "kitchen", task=task)
    return {"suite": member, "environment": f"room/{task}"} if colon else {}


def run_of(directory: Path, jobs: dict[str, str], **how: Any) -> ReadRun:
    """Write a run and read it."""
    return read_run(write_run(directory, jobs, **how))


def arm_of(directory: Path, outcomes: str, **how: Any) -> Arm:
    """Write a run of one job and return that."""
    return run_of(directory, {"lift": outcomes}, **how).arms["lift"]


def write_all_tables(directory: Path) -> None:
    """Write the tables that a run has when it is over."""
    write_tables(directory, merge_results(directory))
