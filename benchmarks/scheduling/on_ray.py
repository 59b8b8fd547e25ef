"""Measure the cost of a Ray cluster on this machine over torchrun: its start, and the time of the episodes.

Both run the same job with the same ranks, dynamically assigned, and take turns: first torchrun and a running cluster,
then, once that has ended, torchrun and Ray that starts with the run. The policy waits in each step, as for a network on
a GPU, so an episode takes as long on a busy engine as on an idle one. Under Ray the ranks write on their node and send
the episodes as bytes.
"""

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run, spread, values
from benchmarks.harness.runs import evaluate, job_reports, job_results, one_job
from benchmarks.harness.workers import module

TORCHRUN, RUNNING, STARTED = "torchrun", "Ray, a cluster that runs", "Ray, started with the run"
PLAIN = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
STEPS = 120
"""Control steps of an episode of `reach` in which the arm rests."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    rounds: int = 3  # Runs of each kind.
    ranks: int = 2  # Ranks of a run.
    episodes: int = 60  # Episodes of a run.
    episode_s: float = 1.0  # Waiting time of the policy in each [s].


@dataclass(frozen=True, kw_only=True)
class Run:
    """Times of one run."""

    start_s: float  # From the command to the start of the first job [s].
    playing_s: float  # From there to the end of the last job [s].
    end_s: float  # From there to the end of the command: tables, report, and the end of Ray [s].

    @property
    def whole_s(self) -> float:
        """From the command to its end [s]."""
        return self.start_s + self.playing_s + self.end_s


def jobs_document(options: Options) -> dict[str, Any]:
    """Return the job file."""
    policy = "benchmarks.harness.policies.PacedPolicy", options.episodes, {"answer_s": options.episode_s / STEPS}
    return one_job({"environment": "reach", "num_envs": 1}, *policy, name="reach")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster on this machine."""

    address: str = "local"  # Address; local for a cluster that the command starts.
    variables: Mapping[str, str]  # The variables that let a program in.


@contextmanager
def running_cluster(num_cpus: int) -> Iterator[Cluster]:
    """Start a cluster of this machine, which asks for a token, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {**PLAIN, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray, known = "ray.scripts.scripts", {**os.environ, **variables}
    with (
        tempfile.TemporaryDirectory(prefix="ray_", ignore_cleanup_errors=True) as place,
        Path(place, "log.txt").open("wb") as log,
    ):
        words = ("--head", f"--port={port}", f"--num-cpus={num_cpus}", "--include-dashboard=false", "--block")
        command = module(ray, "start", *words, "--object-store-memory=200000000", f"--temp-dir={place}")
        process = subprocess.Popen(command, env=known, stdout=log, stderr=log)
        try:
            check = module(ray, "health-check", "--address", f"127.0.0.1:{port}")
            while subprocess.run(check, env=known, capture_output=True, check=False).returncode:
                assert process.poll() is None, Path(place, "log.txt").read_text(encoding="utf-8")
                time.sleep(0.5)
            yield Cluster(address=f"127.0.0.1:{port}", variables=variables)
        finally:
            # Its own way to end waits for half a minute. Workers end with these.
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    if place.encode() in path.read_bytes():
                        os.kill(int(path.parent.name), signal.SIGKILL)
            process.wait()


def measure(options: Options, cluster: Cluster | None) -> Run:
    """Run the job file once, and read the times of its job from the reports."""
    with tempfile.TemporaryDirectory(prefix="on_ray_") as name:
        place, words, ranks = Path(name), ["--num_threads", "1", "--device", "cpu"], options.ranks
        if cluster is None:
            words += ["--assignment", "dynamic"]
        else:
            # The node's directory is not the run's, as on another machine.
            words += ["--cluster", "ray", "--ray_address", cluster.address, "--node_dir", name]
            words += ["--num_ranks", str(ranks)]
        variables = PLAIN if cluster is None else cluster.variables
        launched = ranks if cluster is None else 1
        took = evaluate(place, jobs_document(options), *words, ranks=launched, variables=variables)
        reports = job_reports(place)
        (summary,) = job_results(place)
    assert summary["episodes"] == options.episodes, "not every episode was played"
    assert {report["rank"] for report in reports} == set(range(ranks)), "not every rank has played"
    began, ended = (
        choose(datetime.fromisoformat(report[name]).timestamp() for report in reports)
        for choose, name in ((min, "started_at"), (max, "ended_at"))
    )
    return Run(start_s=began - took.began, playing_s=ended - began, end_s=took.ended - ended)


def main(options: Options) -> None:
    """Measure torchrun and both ways to use Ray in turn, and write the page."""
    page = Page("cluster", "A Ray cluster beside torchrun", options, "ray", "torch")
    with running_cluster(options.ranks) as cluster:
        running = in_turn(_calls(options, RUNNING, cluster), options.rounds)
    started = in_turn(_calls(options, STARTED, Cluster(variables=PLAIN)), options.rounds)
    table = Table("", "start s", "episodes s", "tables and end s", "whole run s")
    over = Table("over torchrun in the same rounds", "start s", "episodes %", "whole run s")
    for found in (running, started):
        for name, runs in found.items():
            figures = ("start_s", "playing_s", "end_s", "whole_s")
            table.add(name, *(f"{median(runs, figure):.1f}" for figure in figures))
        over.add(*_over_torchrun(found))
    text = f"""\
{options.episodes} episodes of {options.episode_s:g} s on {options.ranks} ranks, one env slot each. Medians of
{options.rounds} rounds of torchrun and a cluster that runs, then of as many of torchrun and Ray that starts with the
run. The start is from the command to the beginning of the first job."""
    page.write(text, table, "What Ray takes more, round by round, with the smallest and the largest:", over)


def _calls(options: Options, name: str, cluster: Cluster) -> dict[str, Callable[[], Run]]:
    return {TORCHRUN: partial(measure, options, None), name: partial(measure, options, cluster)}


def _over_torchrun(found: Mapping[str, Sequence[Run]]) -> tuple[str, str, str, str]:
    """Return the additional time of Ray in a series of rounds: its name, start, episodes, and whole run."""
    torchrun, (name, ray) = found[TORCHRUN], next(item for item in found.items() if item[0] != TORCHRUN)
    longer = [100 * (ratio - 1) for ratio in ratios(ray, torchrun, "playing_s")]
    start, whole = (
        [ours - theirs for ours, theirs in zip(values(ray, each), values(torchrun, each), strict=True)]
        for each in ("start_s", "whole_s")
    )
    return name, spread(start, 1), spread(longer, 1), spread(whole, 1)


if __name__ == "__main__":
    run(main, Options)
