"""Measure the time of the tables of a large run.

Writes the files of a finished run, then reads them all and writes every table, as the end of a run and
``isaaclab-arena merge`` do. Reading and writing have separate figures.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.measure import Page, PageOptions, Table, median, run
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.merge import merge_results, write_tables
from isaaclab_arena.storage.commits import CommitLine, CommitWriter
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import (
    JobReport,
    PlanEntry,
    ReportedStatus,
    Reproducible,
    RunPlan,
    write_job_report,
    write_run_plan,
)

WHEN = "2026-01-01T00:00:00.000+00:00"
RANKS = 8
OUTCOMES = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    episodes: int = 100_000  # Episodes of each run.
    jobs: tuple[int, ...] = (1, 100, 10_000)  # Jobs of each run.
    repeats: int = 3  # Merges of each run.


@dataclass(frozen=True, kw_only=True)
class Merge:
    """CPU seconds and wall time of one merge."""

    read_cpu_s: float
    write_cpu_s: float
    wall_s: float


def write_run(directory: Path, *, num_jobs: int, num_episodes: int, policy_seed: int = 0) -> None:
    """Write the files of a finished run; all policy seeds have the same conditions."""
    jobs = tuple(planned(index, num_episodes // num_jobs) for index in range(num_jobs))
    plan = RunPlan(
        run_id="run",
        created_at=WHEN,
        config_hash="0" * 64,
        source_file="jobs.json",
        command_line=(),
        world_size=RANKS,
        versions={},
        git_revision=None,
        machine=Node(host="here", cpu="some", cores=2, platform="Linux"),
        devices=("cpu",) * RANKS,
        jobs=jobs,
    )
    write_run_plan(directory, plan)
    conditions, outcomes = np.random.default_rng(0), np.random.default_rng((1, policy_seed))
    for job in jobs:
        of_job = directory / job.name
        of_job.mkdir()
        writer = CommitWriter(of_job, job.rank or 0)
        for line in lines(job, conditions, outcomes):
            writer.write(line)
        writer.close()
        write_job_report(of_job, report(job))


def planned(index: int, num_episodes: int) -> PlanEntry:
    """Return a job of the plan."""
    config = JobConfig(
        index=index,
        name=f"job{index:05d}",
        environment="pick_and_place",
        policy_type="scripted",
        environment_args={"environment": "pick_and_place", "object": "cube", "num_envs": 16},
        num_envs=16,
        num_episodes=num_episodes,
    )
    return PlanEntry(config=config, rank=index % RANKS, object="cube", embodiment="panda")


def lines(job: PlanEntry, conditions: np.random.Generator, outcomes: np.random.Generator) -> Iterator[CommitLine]:
    """Yield the commit lines of a job."""
    for index in range(job.config.num_episodes or 0):
        outcome = OUTCOMES[int(outcomes.integers(len(OUTCOMES)))]
        numbers = conditions.uniform(-1.0, 1.0, 12).tolist()
        yield CommitLine(
            job=job.name,
            env_id=index % 16,
            episode_in_env=index // 16,
            language_instruction="put the cube into the bin",
            seed=0,
            success=outcome is Outcome.SUCCESS,
            length=int(outcomes.integers(40, 240)),
            timestamp=WHEN,
            conditions={
                "robot.joint_position": numbers[:7],
                "object.position": numbers[7:10],
                "target.position": numbers[10:],
            },
            episode_index=index,
            outcome=outcome,
            termination="terminated",
            episode_return=float(outcomes.uniform(-1.0, 1.0)),
            metrics={"progress": float(outcomes.uniform()), "distance_m": abs(numbers[2])},
            rank=job.rank or 0,
            episode_seed=int(conditions.integers(2**62)),
            dataset_file=f"dataset_{job.name}.hdf5",
            episode_file=f"episodes/e{index:06d}.h5",
            checksum=int(outcomes.integers(2**32)),
            wall_s=1.5,
        )


def report(job: PlanEntry) -> JobReport:
    """Return the report of a job."""
    return JobReport(
        job=job.name,
        rank=job.rank or 0,
        device="cpu",
        status=ReportedStatus.COMPLETED,
        started_at=WHEN,
        ended_at=WHEN,
        wall_s=4.0,
        build_s=1.0,
        simulate_s=2.0,
        env_steps=600,
        num_episodes=job.config.num_episodes,
        reproducible=Reproducible.BITWISE,
    )


def merge(directory: Path, num_episodes: int) -> Merge:
    """Read a run, write its tables, and return the time of both."""
    wall, cpu = time.perf_counter(), time.process_time()
    merged = merge_results(directory)
    read = time.process_time()
    write_tables(directory, merged)
    written = time.process_time()
    assert merged.complete
    assert len(merged.episodes) == num_episodes
    return Merge(read_cpu_s=read - cpu, write_cpu_s=written - read, wall_s=time.perf_counter() - wall)


def main(options: Options) -> None:
    """Merge runs with few jobs and with many, and write the page."""
    page = Page("merge_speed", "How long the tables of a large run take", options)
    table = Table("episodes", "jobs", "read, CPU s", "write, CPU s", "both, CPU s", "both, s", words=0)
    for num_jobs in options.jobs:
        with tempfile.TemporaryDirectory(prefix="merge_speed_") as name:
            write_run(Path(name), num_jobs=num_jobs, num_episodes=options.episodes)
            merges = [merge(Path(name), options.episodes) for _ in range(options.repeats)]
        read, write, wall = (median(merges, figure) for figure in ("read_cpu_s", "write_cpu_s", "wall_s"))
        seconds = (f"{each:.1f}" for each in (read, write, read + write, wall))
        table.add(f"{options.episodes:,}", f"{num_jobs:,}", *seconds)
    text = f"""\
Medians of {options.repeats}; one process, one thread. Every table is written, as CSV and as Parquet. Imports, about a
second, are not counted."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
