"""Measure how long the tables of a large run take: ``python benchmarks/merge_speed.py``.

Writes what the ranks of a run leave on disk, as they would write it, then reads it all and writes every table, as
happens at the end of a run and in ``isaaclab-arena merge``. Reading and writing are said separately.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import tyro

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.result_files import write_tables
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.provenance import Node
from isaaclab_arena.storage.run.commits import CommitRow, CommitWriter
from isaaclab_arena.storage.run.job_reports import JobReport, ReportedStatus, Reproducible, write_job_report
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan, write_run_plan

RESULTS = Path(__file__).parent / "results" / "merge_speed.md"
WHEN = "2026-01-01T00:00:00.000+00:00"
RANKS = 8
OUTCOMES = ("success", "failure", "timeout")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        episodes: Episodes of each run.
        jobs: Jobs of each run.
        repeats: How often each is merged.
        output: Where the table goes; by default the committed one.
    """

    episodes: int = 100_000
    jobs: tuple[int, ...] = (1, 100, 10_000)
    repeats: int = 3
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What one merge took, in CPU seconds and by the clock."""

    read_cpu_s: float
    write_cpu_s: float
    wall_s: float


def write_run(folder: Path, *, num_jobs: int, num_episodes: int) -> None:
    """Write what a finished run leaves.

    Args:
        folder: The run's folder.
        num_jobs: Its jobs, which share the episodes.
        num_episodes: Its episodes.
    """
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
    write_run_plan(folder, plan)
    generator = np.random.default_rng(0)
    for job in jobs:
        directory = job_directory(folder, job.name)
        directory.mkdir()
        writer = CommitWriter(directory, job.rank or 0)
        for row in rows(job, generator):
            writer.write(row)
        writer.close()
        write_job_report(directory, report(job))


def planned(index: int, num_episodes: int) -> PlanEntry:
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


def rows(job: PlanEntry, generator: np.random.Generator) -> Iterator[CommitRow]:
    for index in range(job.config.num_episodes or 0):
        outcome = OUTCOMES[int(generator.integers(len(OUTCOMES)))]
        numbers = generator.uniform(-1.0, 1.0, 12).tolist()
        yield CommitRow(
            job_name=job.name,
            env_id=index % 16,
            episode_in_env=index // 16,
            language_instruction="put the cube into the bin",
            seed=0,
            success=outcome == "success",
            episode_length=int(generator.integers(40, 240)),
            timestamp=WHEN,
            variations={
                "robot.joint_position": numbers[:7],
                "object.position": numbers[7:10],
                "target.position": numbers[10:],
            },
            episode_index=index,
            outcome=outcome,
            termination="terminated",
            episode_return=numbers[0],
            metrics={"progress": abs(numbers[1]), "distance_m": abs(numbers[2])},
            rank=job.rank or 0,
            episode_seed=int(generator.integers(2**62)),
            dataset_file=f"dataset_{job.name}.hdf5",
            episode_file=f"episodes/e{index:06d}.h5",
            checksum=int(generator.integers(2**32)),
            wall_s=1.5,
        )


def report(job: PlanEntry) -> JobReport:
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


def merge(folder: Path, num_episodes: int) -> Merge:
    wall, cpu = time.perf_counter(), time.process_time()
    merged = merge_results(folder)
    read = time.process_time()
    write_tables(folder, merged)
    written = time.process_time()
    assert merged.complete
    assert len(merged.episodes) == num_episodes
    return Merge(read_cpu_s=read - cpu, write_cpu_s=written - read, wall_s=time.perf_counter() - wall)


def main(options: Options) -> None:
    load = os.getloadavg()[0]
    table = [
        "| episodes | jobs | read, CPU s | write, CPU s | both, CPU s | both, s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(table))
    for num_jobs in options.jobs:
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder), num_jobs=num_jobs, num_episodes=options.episodes)
            merges = [merge(Path(folder), options.episodes) for _ in range(options.repeats)]
        read, write, wall = (
            statistics.median(getattr(each, unit) for each in merges)
            for unit in ("read_cpu_s", "write_cpu_s", "wall_s")
        )
        table.append(
            f"| {options.episodes:,} | {num_jobs:,} | {read:.1f} | {write:.1f} | {read + write:.1f} | {wall:.1f} |"
        )
        print(table[-1], flush=True)
    rows_of_table = "\n".join(table)
    text = f"""# How long the tables of a large run take

    python benchmarks/merge_speed.py

{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the start, Python {platform.python_version()},
{datetime.now(UTC):%Y-%m-%d}. Medians of {options.repeats}; one process, one thread. Every table is written, as CSV and
as Parquet. Imports, about a second, are not counted.

{rows_of_table}
"""
    (options.output or RESULTS).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
