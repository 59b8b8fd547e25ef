"""Measure what a job leaves behind in the process that ran it: ``python benchmarks/memory.py``.

Runs many jobs in one process, as a rank does. No two jobs in a row ask for the same environment or policy, so each is
built and closed for its own job. After every job it notes resident memory, open files and threads.
"""

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.evaluation.job.job_runner import JobRunner, RankSettings
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.recording.recorder import RecordedObservations, RecordingOptions
from isaaclab_arena.storage.run.job_reports import ReportedStatus

RESULTS = Path(__file__).parent / "results" / "memory.md"
ENVIRONMENTS: tuple[dict[str, Any], ...] = (
    {"environment": "reach"},
    {"environment": "lift_object", "object": "cube"},
    {"environment": "pick_and_place", "object": "can"},
    {"environment": "open_drawer"},
    {"environment": "lift_object", "object": "mug"},
    {"environment": "push_to_goal", "object": "plate"},
    {"environment": "stack"},
)
POLICIES = ("scripted", "zero_action", "random_action")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        jobs: Jobs without cameras.
        camera_jobs: Jobs with two cameras each.
        first: Jobs of each kind that do not count.
        output: Where the table goes; by default the committed one.
    """

    jobs: int = 200
    camera_jobs: int = 120
    first: int = 30
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a process holds.

    Attributes:
        resident_mb: Resident memory [MB].
        files: Open files.
        threads: Threads.
    """

    resident_mb: float
    files: int
    threads: int


def held() -> Held:
    """Return what this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        resident_mb=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        files=len(list(Path("/proc/self/fd").iterdir())),
        threads=len(list(Path("/proc/self/task").iterdir())),
    )


def job_file(folder: Path, num_jobs: int, *, cameras: bool) -> str:
    """Write a file of short jobs and return its path."""
    jobs = []
    for index in range(num_jobs):
        environment = ENVIRONMENTS[index % len(ENVIRONMENTS)] | {"num_envs": 4}
        if cameras:
            environment |= {"enable_cameras": True, "num_envs": 2}
        jobs.append(
            {
                "name": f"job{index:04d}",
                "arena_env_args": environment,
                "policy_type": POLICIES[index % len(POLICIES)],
                **({"num_steps": 4} if cameras else {"num_episodes": 4}),
            }
        )
    path = folder / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    return str(path)


def run_jobs(num_jobs: int, *, cameras: bool) -> list[Held]:
    """Run jobs one after the other; return what the process held after each and, last, after the runner was closed."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = resolve_jobs(load_jobs_file(job_file(Path(folder), num_jobs, cameras=cameras)).jobs)
        observations = RecordedObservations.ALL if cameras else RecordedObservations.STATE
        settings = RankSettings(
            rank=0,
            world_size=1,
            device=torch.device("cpu"),
            num_threads=2,
            output_directory=Path(folder),
            attempt=1,
            recording=RecordingOptions(observations=observations),
        )
        runner, notes = JobRunner(settings), []
        for job in jobs:
            report = runner.run(job)
            assert report.status is ReportedStatus.COMPLETED, report.error
            if not notes:
                # The first job loads libraries. What is held before and after is compared without any job's things.
                runner.close()
            notes.append(held())
        runner.close()
        notes.append(held())
    return notes


def growth_kb(notes: Sequence[Held]) -> float:
    """Return how much more resident memory each job holds than the one before [kB]."""
    memory = [note.resident_mb for note in notes]
    return 1000 * float(np.polynomial.Polynomial.fit(range(len(memory)), memory, 1).convert().coef[1])


def row(label: str, notes: Sequence[Held], first: int) -> str:
    begin, counted, end = notes[0], notes[first:-1], notes[-1]
    return (
        f"| {label} | {len(notes) - 1} | {begin.resident_mb:.0f} | {counted[0].resident_mb:.0f} "
        f"| {counted[-1].resident_mb:.0f} | {growth_kb(counted):+.0f} "
        f"| {begin.files}, {end.files} | {begin.threads}, {end.threads} |"
    )


def main(options: Options) -> None:
    table = [
        f"| jobs | number | MB after 1 | after {options.first} | after all | kB per job | open files | threads |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(table))
    for label, number, cameras in (("state", options.jobs, False), ("cameras", options.camera_jobs, True)):
        table.append(row(label, run_jobs(number, cameras=cameras), options.first))
        print(table[-1], flush=True)
    rows_of_table = "\n".join(table)
    text = f"""# What a job leaves behind

    python benchmarks/memory.py

{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}. All
jobs run in one process; each builds and closes an environment and a policy of its own, and records its episodes. Growth
is that of a straight line from the {options.first}th job on. Open files and threads are counted after the first job and
after the last, when both have been closed.

{rows_of_table}
"""
    (options.output or RESULTS).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
