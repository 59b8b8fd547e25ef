"""Measure the memory, files and threads that a job leaves behind in its process.

Runs many jobs in one process, as a rank does. No job has the environment or policy of the one before, so each builds
and closes its own. After every job it notes resident memory, open files and threads.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.job_run import JobRunner, RankSettings
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.paths import now
from isaaclab_arena.storage.contents import node
from isaaclab_arena.storage.ledger import Attempt, ReportedStatus

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
class Options(PageOptions):
    """Options of the measurement."""

    jobs: int = 200  # Jobs without cameras.
    camera_jobs: int = 120  # Jobs with two cameras each.
    first: int = 30  # Jobs of each kind that do not count.


@dataclass(frozen=True, kw_only=True)
class Held:
    """Resources of a process."""

    resident_mb: float  # Resident memory [MB].
    files: int  # Open files.
    threads: int  # Threads.


def held() -> Held:
    """Return the resources of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return Held(
        resident_mb=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        files=len(list(Path("/proc/self/fd").iterdir())),
        threads=len(list(Path("/proc/self/task").iterdir())),
    )


def jobs_document(num_jobs: int, *, cameras: bool) -> dict[str, Any]:
    """Return a job file of short jobs."""
    shape = {"enable_cameras": True, "num_envs": 2} if cameras else {"num_envs": 4}
    length = {"num_steps": 4} if cameras else {"num_episodes": 4}
    return {
        "jobs": [
            {
                "name": f"job{index:04d}",
                "arena_env_args": ENVIRONMENTS[index % len(ENVIRONMENTS)] | shape,
                "policy_type": POLICIES[index % len(POLICIES)],
                **length,
            }
            for index in range(num_jobs)
        ]
    }


def run_jobs(num_jobs: int, *, cameras: bool) -> list[Held]:
    """Run jobs in sequence; return the resources after each and, last, after the runner was closed."""
    with tempfile.TemporaryDirectory(prefix="memory_") as name:
        file = Path(name) / "jobs.json"
        file.write_text(json.dumps(jobs_document(num_jobs, cameras=cameras)), encoding="utf-8")
        jobs = resolve_jobs(load_jobs_file(str(file)).jobs)
        settings = RankSettings(
            context=DistributedContext.from_environment({}, device="cpu"),
            options=RunOptions(record_observations="all" if cameras else "state"),
            num_threads=2,
            output_directory=Path(name),
            attempt=Attempt(
                number=1,
                run_id="memory",
                started_at=now(),
                command_line=(),
                assignment="round_robin",
                world_size=1,
                devices=("cpu",),
                versions={},
                git_revision=None,
                machine=node(),
            ),
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
    """Return the growth of resident memory from one job to the next [kB]."""
    memory = [note.resident_mb for note in notes]
    return 1000 * float(np.polynomial.Polynomial.fit(range(len(memory)), memory, 1).convert().coef[1])


def main(options: Options) -> None:
    """Run jobs without cameras and with them, and write the page."""
    page = Page("memory", "What a job leaves behind", options, "torch")
    after = ("MB after 1", f"after {options.first}", "after all")
    table = Table("jobs", "number", *after, "kB per job", "open files", "threads")
    for label, number, cameras in (("state", options.jobs, False), ("cameras", options.camera_jobs, True)):
        notes = run_jobs(number, cameras=cameras)
        begin, counted, end = notes[0], notes[options.first : -1], notes[-1]
        memory = (f"{note.resident_mb:.0f}" for note in (begin, counted[0], counted[-1]))
        unchanged = (f"{begin.files}, {end.files}", f"{begin.threads}, {end.threads}")
        table.add(label, number, *memory, f"{growth_kb(counted):+.0f}", *unchanged)
    text = f"""\
All jobs run in one process; each builds and closes an environment and a policy of its own, and records its episodes.
Growth is that of a straight line from the {options.first}th job on. Open files and threads are counted after the first
job and after the last, when both have been closed."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
