"""Measure two ranks against one on the same machine, without other programs.

Both run the same job file: an even number of equal jobs, on one thread of physics for each rank, so each rank uses one
core. Each pair of runs is one measurement, in alternating order. There are three ratios:

- stepping: the time of the busiest rank in its jobs, without building their environment. Ranks share this time.
- whole run: the time from the command to its end. More ranks make neither its start nor its tables faster.
- cores: the same stepping by two independent processes. It is the value of two cores that share caches, memory and
  clock, and the limit for two ranks.
"""

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run, spread
from benchmarks.harness.runs import evaluate, job_reports


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    pairs: int = 5  # Runs with one rank, each beside one with two.
    jobs: int = 8  # Equal jobs of a run; an even number.
    episodes: int = 96  # Episodes of a job.
    num_envs: int = 16  # Env slots of a job.
    environment: str = "pick_and_place"  # Environment, with the scripted policy.


@dataclass(frozen=True, kw_only=True)
class Run:
    """Times of one run."""

    whole_s: float  # From the command to its end [s].
    start_s: float  # From the command to the start of the first job [s].
    stepping_s: float  # Jobs of the busiest rank, without building environments [s].
    env_steps: int  # Control steps of all env slots.


def jobs_document(options: Options, num_jobs: int) -> dict[str, Any]:
    """Return a job file with equal jobs."""
    environment = {"environment": options.environment, "num_envs": options.num_envs}
    defaults = {"policy_type": "scripted", "num_episodes": options.episodes, "arena_env_args": environment, "seed": 0}
    return {"defaults": defaults, "jobs": [{"name": f"job{index}"} for index in range(num_jobs)]}


def measure(document: dict[str, Any], *, ranks: int) -> Run:
    """Run a job file and read the times of its jobs from its reports."""
    with tempfile.TemporaryDirectory(prefix="two_ranks_") as name:
        alone = {"OMP_NUM_THREADS": "1"}
        took = evaluate(Path(name), document, "--num_threads", "1", "--no_dataset", ranks=ranks, variables=alone)
        reports = job_reports(Path(name))
    assert {report["rank"] for report in reports} == set(range(ranks))
    assert all(report["status"] == "completed" for report in reports)
    stepping_s: Counter[int] = Counter()
    for report in reports:
        stepping_s[report["rank"]] += report["wall_s"] - report["build_s"]
    first = min(datetime.fromisoformat(report["started_at"]).timestamp() for report in reports)
    return Run(
        whole_s=took.wall_s,
        start_s=first - took.began,
        stepping_s=max(stepping_s.values()),
        env_steps=sum(report["env_steps"] for report in reports),
    )


def main(options: Options) -> None:
    """Measure one rank, two ranks and two processes in turn, and write the page."""
    assert options.jobs % 2 == 0, "two ranks need an even number of jobs to have the same work"
    page = Page("two_ranks", "Two ranks against one", options)
    document, half = jobs_document(options, options.jobs), jobs_document(options, options.jobs // 2)
    measure(document, ranks=2)  # Fills the disk cache.

    def apart_once() -> Run:
        with ThreadPoolExecutor(2) as threads:
            runs = threads.map(lambda _: measure(half, ranks=1), range(2))
            return max(runs, key=lambda each: each.stepping_s)

    calls = {
        "1 rank": lambda: measure(document, ranks=1),
        "2 ranks": lambda: measure(document, ranks=2),
        "apart": apart_once,
    }
    runs = in_turn(calls, options.pairs)
    one, two, apart = runs.values()
    assert {each.env_steps for each in (*one, *two)} == {one[0].env_steps}, "not every run made the same steps"
    table = Table("", "start-up s", "stepping s", "control steps per s", "whole run s")
    for name in ("1 rank", "2 ranks"):
        start_s, stepping_s, whole_s = (median(runs[name], each) for each in ("start_s", "stepping_s", "whole_s"))
        table.add(
            name, f"{start_s:.1f}", f"{stepping_s:.1f}", f"{one[0].env_steps / stepping_s:,.0f}", f"{whole_s:.1f}"
        )
    text = f"""\
{options.jobs} jobs of `{options.environment}`, {options.episodes} episodes and {options.num_envs} env slots each, one
thread a rank. Seconds are medians of {options.pairs} runs; ratios are of pairs, with the smallest and the largest."""
    found = f"""\
- stepping, two ranks against one: {spread(ratios(one, two, "stepping_s"))}
- whole run: {spread(ratios(one, two, "whole_s"))}
- cores, two processes that know nothing of each other: {spread(ratios(one, apart, "stepping_s"))}"""
    print(found)
    page.write(text, table, found)


if __name__ == "__main__":
    run(main, Options)
