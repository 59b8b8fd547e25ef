"""Measure the time of comparing two large runs, as ``isaaclab-arena compare`` does.

Writes two runs of the same jobs and conditions with their tables, then reads both, compares them job by job and writes
the files of the comparison.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.measure import Page, PageOptions, Table, median, run
from benchmarks.runs.merge_speed import write_run
from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import Question, compare_runs
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.results.merge import merge_results, write_tables


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    episodes: tuple[int, ...] = (100, 10_000)  # Episodes of each job.
    jobs: int = 20  # Jobs of each run.
    repeats: int = 3  # Repeats of each comparison.


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """CPU seconds and wall time of one comparison."""

    read_cpu_s: float
    compare_cpu_s: float
    write_cpu_s: float
    wall_s: float


def write_runs(directory: Path, *, num_jobs: int, num_episodes: int) -> list[Path]:
    """Write two finished runs of the same conditions, and return their directories."""
    runs = [directory / name for name in ("baseline", "candidate")]
    for policy_seed, each in enumerate(runs):
        each.mkdir(parents=True)
        write_run(each, num_jobs=num_jobs, num_episodes=num_jobs * num_episodes, policy_seed=policy_seed)
        write_tables(each, merge_results(each))
    return runs


def compare(baseline: Path, candidate: Path, num_pairs: int) -> Comparing:
    """Compare two runs, and return the time of each part."""
    wall, cpu = time.perf_counter(), time.process_time()
    runs = read_run(candidate), read_run(baseline)
    read = time.process_time()
    report = compare_runs(*runs, Question())
    compared = time.process_time()
    write_comparison(candidate, report)
    written = time.process_time()
    assert sum(each.counts.total for each in report.tasks) == num_pairs
    return Comparing(
        read_cpu_s=read - cpu,
        compare_cpu_s=compared - read,
        write_cpu_s=written - compared,
        wall_s=time.perf_counter() - wall,
    )


def main(options: Options) -> None:
    """Compare small runs and large ones, and write the page."""
    page = Page("comparison_speed", "How long it takes to compare two large runs", options)
    table = Table(
        "jobs", "episodes of each", "read, CPU s", "compare, CPU s", "write, CPU s", "all, CPU s", "all, s", words=0
    )
    for num_episodes in options.episodes:
        with tempfile.TemporaryDirectory(prefix="comparison_speed_") as name:
            runs = write_runs(Path(name), num_jobs=options.jobs, num_episodes=num_episodes)
            measured = [compare(*runs, num_pairs=options.jobs * num_episodes) for _ in range(options.repeats)]
        parts = [median(measured, figure) for figure in ("read_cpu_s", "compare_cpu_s", "write_cpu_s")]
        seconds = (f"{each:.1f}" for each in (*parts, sum(parts), median(measured, "wall_s")))
        table.add(options.jobs, f"{num_episodes:,}", *seconds)
    text = f"""\
Medians of {options.repeats}; one process. Both runs have their tables. Every job is compared with its own of the other
run: counts, intervals, tests, lengths, returns and progress, what so many pairs could show, and four files. Imports,
about a second, are not counted."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
