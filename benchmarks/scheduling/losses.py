"""Kill parts of runs on a Ray cluster at random moments, and measure the time to the end and the losses.

Each run is one job on two ranks of a cluster of two nodes on this machine. At a moment drawn from the whole of an
undisturbed run, the program kills a rank, a node, the claim server or the runner, and resumes the run if the runner has
ended. The tables are compared with those of one process.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.runs import RUNNER, evaluate, one_job
from benchmarks.harness.workers import module

NODE = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
VARIABLES = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
VICTIMS = ("rank", "node", "claim server", "program")
TABLES = [f"{table}.{kind}" for table in ("results", "episodes") for kind in ("csv", "parquet")]
STEPS = 120


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the program."""

    moments: int = 12  # Runs, each disturbed once.
    episodes: int = 24  # Episodes of a run.
    episode_s: float = 1.0  # Waiting time of the policy in each [s].
    seed: int = 0  # Seed of the moments.


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """A run with a killed part."""

    victim: str  # Killed part: the program if no other part was there yet.
    at_s: float  # Time since the command [s].
    phase: str  # Phase of the run.
    to_end_s: float  # From then to the end of the last command [s].
    resumed: int  # Number of resumes.
    lost: int  # Episodes without a commit line.
    twice: int  # Episodes with more than one.
    same: bool  # Its tables are those of one process, byte for byte.


def document(options: Options) -> dict[str, Any]:
    """Return the job file."""
    policy = "benchmarks.harness.policies.PacedPolicy", options.episodes, {"answer_s": options.episode_s / STEPS}
    return one_job({"environment": "reach", "num_envs": 2}, *policy, name="reach")


class Nodes:
    """A cluster of two nodes on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415  the variables have to be set before

        self._cluster: Any = Cluster(initialize_head=True, head_node_args=NODE)
        self._other = self._cluster.add_node(**NODE)
        assert self._cluster.address is not None
        self.address: str = self._cluster.address

    @property
    def head(self) -> int:
        """The process of the node that the program is on."""
        head = self._cluster.head_node
        assert head is not None
        return head.all_processes["raylet"][0].process.pid

    @property
    def other(self) -> int:
        """The process of the other node."""
        return self._other.all_processes["raylet"][0].process.pid

    def mend(self) -> None:
        """Add a node where one was killed."""
        if self._other.all_processes["raylet"][0].process.poll() is not None:
            with contextlib.suppress(Exception):
                self._cluster.remove_node(self._other)
            self._other = self._cluster.add_node(**NODE)

    def close(self) -> None:
        """End them."""
        self._cluster.shutdown()


def workers(title: str, nodes: Nodes) -> Iterator[int]:
    """Yield the processes of the nodes that run actors of a class."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            if path.read_bytes().startswith(f"ray::{title}".encode()) and parent in (nodes.head, nodes.other):
                yield int(path.parent.name)


def commit_lines(output: Path) -> Counter[int]:
    """Count the commit lines of each episode."""
    files = output.glob("*/episode_results_rank*.jsonl")
    lines = [line for path in files for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return Counter(json.loads(line)["episode_index"] for line in lines)


def phase_of(output: Path, options: Options) -> str:
    """Return the phase of a run, from its files."""
    if not (output / "run.json").exists():
        return "starts"
    committed = len(commit_lines(output))
    if committed == 0:
        return "ranks start"
    if committed < options.episodes:
        return f"plays, {committed} committed"
    return "has its tables" if (output / "episodes.parquet").exists() else "makes datasets and tables"


def begin(place: Path, nodes: Nodes, *, resumes: bool) -> subprocess.Popen[bytes]:
    """Start the command, the first time or again."""
    where = ("--resume" if resumes and (place / "out" / "run.json").exists() else "--output_dir", place / "out")
    on_ray = ("--cluster", "ray", "--ray_address", nodes.address, "--node_dir", place / "nodes", "--num_ranks", 2)
    words = ("--eval_jobs_config", place / "jobs.json", *where, *on_ray, "--gpus_per_rank", 1, "--device", "cpu")
    with (place / "log.txt").open("ab") as log:
        return subprocess.Popen(
            module(RUNNER, *words),
            cwd=ROOT,
            env={**os.environ, **VARIABLES},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill(victim: str, program: subprocess.Popen[bytes], nodes: Nodes, generator: np.random.Generator) -> str:
    """Kill a part of a run, and return its name."""
    if victim == "node":
        os.kill(nodes.other, signal.SIGKILL)
        return victim
    title = {"rank": "RankActor", "claim server": "ClaimServerActor"}.get(victim)
    found = [] if title is None else sorted(workers(title, nodes))
    if found:
        os.kill(found[int(generator.integers(len(found)))], signal.SIGKILL)
        return victim
    os.killpg(program.pid, signal.SIGKILL)
    return "program"


def disturb(victim: str, at_s: float, options: Options, nodes: Nodes, alone: Path, seed: int) -> Disturbed:
    """Run the job, kill something at a moment, and resume until the run is complete."""
    with tempfile.TemporaryDirectory(prefix="losses_") as name:
        place, generator, resumed = Path(name), np.random.default_rng(seed), 0
        (place / "jobs.json").write_text(json.dumps(document(options)), encoding="utf-8")
        program = begin(place, nodes, resumes=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(timeout=at_s)
        phase = phase_of(place / "out", options)
        killed = kill(victim, program, nodes, generator) if program.poll() is None else "nothing"
        killed_at = time.monotonic()
        while program.wait() != 0:
            resumed += 1
            assert resumed < 5, (place / "log.txt").read_text(encoding="utf-8")[-3000:]
            program = begin(place, nodes, resumes=True)
        counts = commit_lines(place / "out")
        return Disturbed(
            victim=killed,
            at_s=at_s,
            phase=phase,
            to_end_s=time.monotonic() - killed_at,
            resumed=resumed,
            lost=len(set(range(options.episodes)) - counts.keys()),
            twice=sum(count > 1 for count in counts.values()),
            same=all((place / "out" / each).read_bytes() == (alone / each).read_bytes() for each in TABLES),
        )


def main(options: Options) -> None:
    """Disturb runs, and write the page."""
    os.environ.update(VARIABLES)
    page = Page("losses", "Killed at random moments", options, "ray")
    table = Table("killed", "after s", "the run", "to the end s", "resumed", "lost", "twice", "tables", words=1)
    generator, nodes = np.random.default_rng(options.seed), Nodes()
    found: list[Disturbed] = []
    try:
        with tempfile.TemporaryDirectory(prefix="losses_") as name:
            evaluate(Path(name), document(options))
            place = Path(name) / "undisturbed"
            place.mkdir()
            (place / "jobs.json").write_text(json.dumps(document(options)), encoding="utf-8")
            began = time.monotonic()
            assert begin(place, nodes, resumes=False).wait() == 0, (place / "log.txt").read_text(encoding="utf-8")
            undisturbed_s = time.monotonic() - began
            # One moment in each of as many parts of the run, so that its start and its end are among them.
            parts = (np.arange(options.moments) + generator.random(options.moments)) / options.moments
            for number, part in enumerate(generator.permutation(parts)):
                nodes.mend()
                victim = VICTIMS[number % len(VICTIMS)]
                found.append(disturb(victim, part * undisturbed_s, options, nodes, Path(name) / "out", number))
                each = found[-1]
                cells = (each.victim, f"{each.at_s:.1f}", each.phase, f"{each.to_end_s:.1f}", each.resumed)
                table.add(*cells, each.lost, each.twice, "the same" if each.same else "others")
    finally:
        nodes.close()
    text = f"""\
{options.episodes} episodes of {options.episode_s:g} s on two ranks; undisturbed, such a run took {undisturbed_s:.0f} s
from the command to its end. One thing is killed in each of {options.moments} runs. What is left goes on, or, where the
program has ended, the run is resumed on the cluster, which begins with the start of the program."""
    worst = max(each.to_end_s for each in found)
    sums = f"""\
From the kill to the end of the run: {worst:.0f} s at most. Lost: {sum(each.lost for each in found)}. Twice:
{sum(each.twice for each in found)}. Tables other than those of one process: {sum(not each.same for each in found)}."""
    page.write(text, table, sums)


if __name__ == "__main__":
    run(main, Options)
