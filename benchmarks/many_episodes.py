"""Run very many episodes, and very many jobs: ``python benchmarks/many_episodes.py``.

Their environment does nothing, so what is left is the program itself: drawing conditions, the loop, committing results,
reports, tables. Runs the real runner in a process of its own and notes its resident memory while it runs. Memory is
flat if the second half of a run adds next to nothing; the tables, which hold all episodes at once, come after that.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "many_episodes.md"
SAMPLE_INTERVAL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        episodes: Episodes of the run with one job.
        jobs: Jobs of the run with one episode each.
        num_envs: Rows of the environment in the run with one job.
        output: Where the table goes; by default the committed one.
    """

    episodes: int = 100_000
    jobs: int = 10_000
    num_envs: int = 64
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run took.

    Attributes:
        start_s: From the call of the runner to the first episode's commit [s].
        run_s: From there to the last report [s].
        end_s: From there to the end, tables and all [s].
        cpu_s: CPU time of everything.
        halfway_mb: Resident memory in the middle of the run [MB].
        late_mb: Resident memory at its end, before the tables [MB].
        peak_mb: The most that was resident at any time [MB].
    """

    start_s: float
    run_s: float
    end_s: float
    cpu_s: float
    halfway_mb: float
    late_mb: float
    peak_mb: float


def write_jobs(path: Path, *, num_jobs: int, num_episodes: int, num_envs: int) -> None:
    """Write a file of jobs that toss coins, a step each."""
    arguments = {"environment": "coins", "num_envs": num_envs, "success_step": 1, "failure_step": 2}
    jobs = [{"name": f"coins{index:05d}", "num_episodes": num_episodes, "seed": index} for index in range(num_jobs)]
    defaults = {"policy_type": "zero_action", "arena_env_args": arguments}
    path.write_text(json.dumps({"defaults": defaults, "jobs": jobs}))


class Sampler:
    """Notes when a process held how much memory, on a thread of its own."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples."""
        self._ended.set()
        self._thread.join()

    def at(self, when: float) -> float:
        """Return the memory at a time, or at most a moment before [MB]."""
        return max(sample for sample in self.samples if sample[0] <= when)[1]

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append((time.time(), pages * os.sysconf("SC_PAGE_SIZE") / 1e6))


def run_here(folder: Path) -> dict[str, Any]:
    """Run the jobs of a folder in this process and return what `Measured` holds."""
    sys.path.insert(0, str(ROOT))
    from isaaclab_arena.environments.catalog import ENVIRONMENTS  # noqa: PLC0415  the coins are beside the package
    from isaaclab_arena.evaluation.eval_runner import main as run  # noqa: PLC0415
    from tests.fakes import CoinBuilder  # noqa: PLC0415

    ENVIRONMENTS.register("coins", CoinBuilder())
    output = folder / "out"
    sampler, started = Sampler(), time.time()
    arguments = ["--eval_jobs_config", str(folder / "jobs.json"), "--output_dir", str(output), "--no_dataset"]
    code = run(arguments)
    ended = time.time()
    sampler.stop()
    assert code == 0, f"the runner returned {code}"
    first = min(path.stat().st_mtime for path in output.glob("coins*"))
    last = max(path.stat().st_mtime for path in output.glob("coins*/job_report_*.json"))
    first = min(first, *(born(path) for path in output.glob("coins00000/episode_results_*")))
    return {
        "start_s": first - started,
        "run_s": last - first,
        "end_s": ended - last,
        "cpu_s": time.process_time(),
        "halfway_mb": sampler.at((first + last) / 2),
        "late_mb": sampler.at(last),
        "peak_mb": max(sample[1] for sample in sampler.samples),
    }


def born(path: Path) -> float:
    """Return when the first episode in a file of results ended."""
    with path.open() as lines:
        return datetime.fromisoformat(json.loads(next(lines))["timestamp"]).timestamp()


def measure(*, num_jobs: int, num_episodes: int, num_envs: int) -> Measured:
    """Run jobs in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        write_jobs(Path(folder) / "jobs.json", num_jobs=num_jobs, num_episodes=num_episodes, num_envs=num_envs)
        command = [sys.executable, __file__, "--run", folder]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"the run ended with {run.returncode}: {run.stderr[-2000:]}")
        return Measured(**json.loads(run.stdout.splitlines()[-1]))


def row(label: str, num_episodes: int, measured: Measured) -> str:
    return (
        f"| {label} | {measured.start_s:.1f} | {measured.run_s:.1f} | {measured.end_s:.1f} | {measured.cpu_s:.1f} "
        f"| {num_episodes / measured.run_s:,.0f} | {measured.halfway_mb:.0f} | {measured.late_mb:.0f} "
        f"| {measured.peak_mb:.0f} |"
    )


def main(options: Options) -> None:
    load = os.getloadavg()[0]
    table = [
        "| run | start-up s | run s | tables s | CPU s | episodes per s | MB halfway | MB at the end | MB at most |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(table))
    for num_jobs, num_episodes, num_envs in (
        (1, options.episodes // 10, options.num_envs),
        (1, options.episodes, options.num_envs),
        (options.jobs // 10, 1, 1),
        (options.jobs, 1, 1),
    ):
        label = f"{num_jobs:,} x {num_episodes:,} episodes, {num_envs} rows"
        measured = measure(num_jobs=num_jobs, num_episodes=num_episodes, num_envs=num_envs)
        table.append(row(label, num_jobs * num_episodes, measured))
        print(table[-1], flush=True)
    rows_of_table = "\n".join(table)
    text = f"""# Very many episodes, and very many jobs

    python benchmarks/many_episodes.py

{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the start, Python {platform.python_version()},
{datetime.now(UTC):%Y-%m-%d}. Coins are tossed, one or two steps an episode, with `--no_dataset`. Memory at the end is
that before the tables are made, which hold all episodes at once.

{rows_of_table}
"""
    (options.output or RESULTS).write_text(text, encoding="utf-8")


def command_line(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--run"]:
        print(json.dumps(run_here(Path(arguments[1]))))
    else:
        main(tyro.cli(Options, args=arguments))


if __name__ == "__main__":
    command_line(sys.argv[1:])
