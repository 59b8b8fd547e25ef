"""Measure two ranks against one on the same machine: ``python benchmarks/two_ranks.py``, where nothing else runs.

Both run the same job file: an even number of equal jobs, on one thread of physics for each rank, so one rank uses one
core and two ranks use two. Each pair of runs is one measurement; which of the two goes first alternates. Three ratios
are told:

- stepping: how long the rank with the most to do ran its jobs, without building their environment. It is what ranks
  share.
- whole run: from typing the command to its end. More ranks make neither its start nor its tables faster.
- cores: the same stepping by two processes that know nothing of each other. It says what two cores are worth here,
  where they share caches, memory and clock, and is the most that two ranks can reach.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "two_ranks.md"
RUNNER = ("-m", "isaaclab_arena.evaluation.eval_runner")
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        pairs: Runs with one rank, each beside one with two.
        jobs: Equal jobs of a run; an even number.
        episodes: Episodes of a job.
        num_envs: Rows of a job's environment.
        environment: What is run, by the scripted policy.
        output: Where the table goes; by default the committed one.
    """

    pairs: int = 5
    jobs: int = 8
    episodes: int = 96
    num_envs: int = 16
    environment: str = "pick_and_place"
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run took.

    Attributes:
        whole_s: From the command to its end [s].
        start_s: From the command to the start of the first job [s].
        stepping_s: Jobs of one rank, without building what they need [s]; that of the rank with the most.
        env_steps: Control steps of all rows.
    """

    whole_s: float
    start_s: float
    stepping_s: float
    env_steps: int


def write_jobs(path: Path, options: Options, num_jobs: int) -> None:
    """Write a file of jobs that all do the same."""
    environment = {"environment": options.environment, "num_envs": options.num_envs}
    defaults = {"policy_type": "scripted", "num_episodes": options.episodes, "arena_env_args": environment, "seed": 0}
    path.write_text(json.dumps({"defaults": defaults, "jobs": [{"name": f"job{index}"} for index in range(num_jobs)]}))


def run(jobs: Path, *, ranks: int) -> Run:
    """Run a job file and read from its reports when its jobs ran."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *(LAUNCHER if ranks > 1 else ()), *RUNNER, "--eval_jobs_config", str(jobs)]
        arguments = ["--output_dir", f"{folder}/out", "--num_threads", "1", "--no_dataset"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        started = time.time()
        subprocess.run([*command, *arguments], env=variables, check=True, capture_output=True)
        ended = time.time()
        reports = [json.loads(path.read_text()) for path in Path(folder).glob("out/*/job_report_*.json")]
    assert {report["rank"] for report in reports} == set(range(ranks))
    assert all(report["status"] == "completed" for report in reports)
    first = min(datetime.fromisoformat(report["started_at"]).timestamp() for report in reports)
    stepping_s = dict.fromkeys(range(ranks), 0.0)
    for report in reports:
        stepping_s[report["rank"]] += report["wall_s"] - report["build_s"]
    return Run(
        whole_s=ended - started,
        start_s=first - started,
        stepping_s=max(stepping_s.values()),
        env_steps=sum(report["env_steps"] for report in reports),
    )


def run_apart(jobs: Path) -> float:
    """Run a job file in two processes that know nothing of each other; return how long the slower one stepped [s]."""
    with ThreadPoolExecutor(2) as threads:
        return max(threads.map(lambda _: run(jobs, ranks=1).stepping_s, range(2)))


def ratio(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(options: Options) -> None:
    load = os.getloadavg()[0]
    assert options.jobs % 2 == 0, "two ranks need an even number of jobs to have the same work"
    ones, twos, apart = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        whole, half = Path(folder) / "jobs.json", Path(folder) / "half.json"
        write_jobs(whole, options, options.jobs)
        write_jobs(half, options, options.jobs // 2)
        run(whole, ranks=2)  # fills the disk cache
        for pair in range(options.pairs):
            for ranks in (1, 2) if pair % 2 else (2, 1):
                (ones if ranks == 1 else twos).append(run(whole, ranks=ranks))
            apart.append(run_apart(half))
            print(f"{ones[-1].stepping_s / twos[-1].stepping_s:.2f}", flush=True)
    assert {each.env_steps for each in (*ones, *twos)} == {ones[0].env_steps}, "not every run made the same steps"
    steps = ones[0].env_steps

    def line(label: str, runs: list[Run]) -> str:
        whole_s, start_s, stepping_s = (
            statistics.median(getattr(each, name) for each in runs) for name in ("whole_s", "start_s", "stepping_s")
        )
        return f"| {label} | {start_s:.1f} | {stepping_s:.1f} | {steps / stepping_s:,.0f} | {whole_s:.1f} |"

    pairs = list(zip(ones, twos, apart, strict=True))
    text = f"""# Two ranks against one

    python benchmarks/two_ranks.py --pairs {options.pairs}

{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the start, {datetime.now(UTC):%Y-%m-%d};
{options.jobs} jobs of `{options.environment}`, {options.episodes} episodes and {options.num_envs} rows each, one thread
a rank. Seconds are medians of {options.pairs} runs; ratios are of pairs, with the smallest and the largest.

| | start-up s | stepping s | control steps per s | whole run s |
| --- | ---: | ---: | ---: | ---: |
{line("1 rank", ones)}
{line("2 ranks", twos)}

- stepping, two ranks against one: {ratio([one.stepping_s / two.stepping_s for one, two, _ in pairs])}
- whole run: {ratio([one.whole_s / two.whole_s for one, two, _ in pairs])}
- cores, two processes that know nothing of each other: {ratio([one.stepping_s / both for one, _, both in pairs])}
"""
    print(text)
    (options.output or RESULTS).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
