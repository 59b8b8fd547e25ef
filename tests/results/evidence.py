"""Builds what ranks leave on disk, without running anything."""

import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.columns import EPISODES, GROUPS, JOBS, SUITES, Column
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.rows import JobEvidence
from isaaclab_arena.storage.commits import CommitLine, CommitLog, CommitWriter
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import (
    Attempt,
    JobReport,
    PlanEntry,
    ReportedStatus,
    Reproducible,
    RunPlan,
    write_job_report,
    write_run_plan,
)

Value = TypeVar("Value")
LETTERS = {"s": Outcome.SUCCESS, "f": Outcome.FAILURE, "t": Outcome.TIMEOUT, "e": Outcome.ERROR, "u": None}
HERE = Node(host="here", cpu="some", cores=2, platform="Linux")
_RESOLVED = {field.name for field in dataclasses.fields(PlanEntry)}


def there(value: Value | None) -> Value:
    """Return a value that must not be None."""
    assert value is not None
    return value


def kinds(columns: Sequence[Column[Any]], file: str = "results") -> dict[str, str]:
    """Map the columns that every run has in a file to their types."""
    return {each.name: each.kind for each in columns if each.when is None and each.file == file}


JOB_COLUMNS, SUITE_COLUMNS, EPISODE_COLUMNS, GROUP_COLUMNS = map(kinds, (JOBS, SUITES, EPISODES, GROUPS))
SIMULATION_COLUMNS = ["protocol", "engine", "simulated_by"]
BENCHMARK_COLUMNS = [*SIMULATION_COLUMNS, "environment_sha256"]


def job_row(evidence: JobEvidence) -> dict[str, Any]:
    """Return the value of every column of a job, also of those that its run has not."""
    return {each.name: each.value(evidence) for each in JOBS}


def episode_row(job: PlanEntry, line: CommitLine) -> dict[str, Any]:
    [episode] = JobEvidence(job=job, log=CommitLog(lines=(line,)), reports=()).episodes
    return {each.name: each.value(episode) for each in EPISODES}


def plan_entry(name: str, *, rank: int | None = 0, **said: Any) -> PlanEntry:
    """Return the entry of a job; what is no key of an entry is one of the job itself."""
    asked = {"index": 0, "environment": "lift_object", "policy_type": "zero_action", "seed": 3}
    asked |= {key: value for key, value in said.items() if key not in _RESOLVED}
    resolved = {key: value for key, value in said.items() if key in _RESOLVED}
    return PlanEntry(config=JobConfig(name=name, **asked), rank=rank, **resolved)


def run_plan(*jobs: PlanEntry, world_size: int = 1, **changes: Any) -> RunPlan:
    said = {"run_id": "run", "created_at": "2026-01-01T00:00:00+00:00", "config_hash": "abc", "command_line": ()}
    said |= {"source_file": "jobs.json", "versions": {}, "git_revision": None, "machine": HERE}
    return RunPlan(jobs=jobs, world_size=world_size, **{**said, "devices": ("cpu",) * world_size, **changes})


def planned(name: str = "lift", **said) -> PlanEntry:
    return plan_entry(name, **{"num_envs": 4, "num_episodes": 10, **said})


def commit_lines(outcomes: str, *, job: str = "lift", rank: int = 0, first: int = 0) -> list[CommitLine]:
    """Return one line per letter: s success, f failure, t time-out, e error, u not measured, - missing."""
    return [
        CommitLine(
            job=job,
            env_id=index % 4,
            episode_in_env=0,
            language_instruction="lift it",
            seed=3,
            success=None if letter in "eu" else letter == "s",
            length=10 + index,
            timestamp=f"2026-01-01T00:00:{index:02d}",
            conditions={"cube.x": 0.5 + index},
            episode_index=index,
            outcome=LETTERS[letter],
            termination="terminated",
            episode_return=None if letter == "e" else float(index),
            error="the physics diverged" if letter == "e" else None,
            rank=rank,
            episode_seed=index,
        )
        for index, letter in enumerate(outcomes, start=first)
        if letter != "-"
    ]


def report(job: str = "lift", rank: int = 0, **changes) -> JobReport:
    said = {"device": "cpu", "status": ReportedStatus.COMPLETED, "started_at": "", "ended_at": "", "wall_s": 4.0}
    said |= {"build_s": 1.0, "simulate_s": 2.0, "env_steps": 600, "reproducible": Reproducible.BITWISE}
    return JobReport(**{"job": job, "rank": rank, **said, **changes})


def write_plan(directory: Path, *jobs: PlanEntry, world_size: int = 1) -> None:
    write_run_plan(directory, run_plan(*jobs, world_size=world_size))


def attempt(number: int = 1, **changes) -> Attempt:
    said = {"run_id": f"run{number}", "started_at": "2026-01-01T00:00:00+00:00", "assignment": "round_robin"}
    said |= {"command_line": (), "versions": {}, "git_revision": None, "machine": HERE}
    return Attempt(**{"number": number, "world_size": 1, "devices": ("cpu",), **said, **changes})


def write_lines(directory: Path, lines: list[CommitLine]) -> Path:
    first = lines[0]
    writer = CommitWriter(directory / first.job, first.rank)
    for line in lines:
        writer.write(line)
    writer.close()
    return writer.path


def write_report(directory: Path, job_report: JobReport) -> None:
    write_job_report(directory / job_report.job, job_report)


def write_job(directory: Path, outcomes: str, *reports: JobReport, **said) -> Path:
    """Write a run of the one job ``lift``, of which one rank reports that it completed unless reports are given."""
    write_plan(directory, planned(**said))
    if outcomes:
        write_lines(directory, commit_lines(outcomes))
    for each in reports or (report(),):
        write_report(directory, each)
    return directory


def printed(show: Callable[[Console], object], width: int = 120, *, colour: bool = False) -> str:
    stream = io.StringIO()
    show(Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None))
    return stream.getvalue()


def summary(directory: Path, width: int = 140) -> str:
    """Return the terminal's lines at the end of a run."""
    return printed(lambda console: print_summary(merge_results(directory), directory, console), width)
