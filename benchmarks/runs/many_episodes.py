"""Run very many episodes, and very many jobs, in an environment that does nothing.

So only the program takes time: conditions, the loop, commits, reports, tables. Memory is flat if the second half of a
run adds next to nothing; the tables, which hold all episodes at once, follow after that.
"""

import json
import math
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.runs import evaluate

TEXT = """\
Coins are tossed, one or two steps an episode, with `--no_dataset`. Start-up is from the command to the first episode's
commit. Memory at the end is that before the tables are made, which hold all episodes at once."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    episodes: int = 100_000  # Episodes of the run with one job.
    jobs: int = 10_000  # Jobs of the run with one episode each.
    num_envs: int = 64  # Env slots in the run with one job.


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Resources of one run."""

    start_s: float  # From the command to the first episode's commit [s].
    run_s: float  # From there to the last report [s].
    end_s: float  # From there to the end, tables and all [s].
    cpu_s: float  # CPU time of everything [s].
    halfway_mb: float  # Resident memory in the middle of the run [MB].
    late_mb: float  # Resident memory at its end, before the tables [MB].
    peak_mb: float  # Most memory that was resident at any time [MB].


def jobs_document(*, num_jobs: int, num_episodes: int, num_envs: int) -> dict[str, Any]:
    """Return a job file of tossed coins, one or two steps an episode."""
    arguments = {"environment": "coins", "num_envs": num_envs, "success_step": 1, "failure_step": 2}
    jobs = [{"name": f"coins{index:05d}", "num_episodes": num_episodes, "seed": index} for index in range(num_jobs)]
    return {"defaults": {"policy_type": "zero_action", "arena_env_args": arguments}, "jobs": jobs}


def measure(*, num_jobs: int, num_episodes: int, num_envs: int) -> Measured:
    """Run jobs in a process of their own."""
    document = jobs_document(num_jobs=num_jobs, num_episodes=num_episodes, num_envs=num_envs)
    with tempfile.TemporaryDirectory(prefix="many_episodes_") as name:
        took = evaluate(Path(name), document, "--no_dataset", program="benchmarks.harness.coins")
        output = Path(name) / "out"
        first = math.inf
        for path in output.glob("coins00000/episode_results_*"):
            with path.open(encoding="utf-8") as lines:
                stamp = json.loads(next(lines))["timestamp"]
            first = min(first, datetime.fromisoformat(stamp).timestamp())
        last = max(path.stat().st_mtime for path in output.glob("coins*/job_report_*.json"))
    return Measured(
        start_s=first - took.began,
        run_s=last - first,
        end_s=took.ended - last,
        cpu_s=took.cpu_s,
        halfway_mb=took.resident_mb((first + last) / 2),
        late_mb=took.resident_mb(last),
        peak_mb=took.peak_mb,
    )


def main(options: Options) -> None:
    """Measure short and long runs with one job and with many, and write the page."""
    page = Page("many_episodes", "Very many episodes, and very many jobs", options)
    seconds = ("start-up s", "run s", "tables s", "CPU s")
    table = Table("run", *seconds, "episodes per s", "MB halfway", "MB at the end", "MB at most")
    for num_jobs, num_episodes, num_envs in (
        (1, options.episodes // 10, options.num_envs),
        (1, options.episodes, options.num_envs),
        (options.jobs // 10, 1, 1),
        (options.jobs, 1, 1),
    ):
        took = measure(num_jobs=num_jobs, num_episodes=num_episodes, num_envs=num_envs)
        per_s = num_jobs * num_episodes / took.run_s
        table.add(
            f"{num_jobs:,} x {num_episodes:,} episodes, {num_envs} env slot{'s' if num_envs > 1 else ''}",
            *(f"{seconds:.1f}" for seconds in (took.start_s, took.run_s, took.end_s, took.cpu_s)),
            *(f"{figure:,.0f}" for figure in (per_s, took.halfway_mb, took.late_mb, took.peak_mb)),
        )
    page.write(TEXT, table)


if __name__ == "__main__":
    run(main, Options)
