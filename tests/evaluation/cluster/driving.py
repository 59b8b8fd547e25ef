"""Ray clusters on this machine: nodes that share no directory, with GPUs that are only pretended."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.end_to_end.launching import command, patience_s, same_tables, start, wait_until, write_jobs
from tests.evaluation.cluster.policies import STEP_S

NODE = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
# Ray gives ranks a nice value of 15 otherwise, with which they wait for minutes beside other tests.
RAY_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@contextmanager
def cluster_of(num_nodes: int) -> Iterator[Any]:
    """Give a cluster of nodes with room for a rank each; further ones can be added, and any but the first removed."""
    os.environ.update(RAY_VARIABLES)
    from ray.cluster_utils import Cluster  # noqa: PLC0415  only where Ray is installed

    cluster = with_patience(lambda: Cluster(initialize_head=True, head_node_args=NODE))
    try:
        for _ in range(num_nodes - 1):
            add_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any) -> Any:
    """Add a node with room for a rank, and return it."""
    return with_patience(lambda: cluster.add_node(**NODE))


def with_patience(begin: Callable[[], Any]) -> Any:
    """Start a node; Ray gives up after half a minute, which is too short for a machine that has other things to do."""
    for _ in range(4):
        with suppress(Exception):
            return begin()
    return begin()


def on_cluster(address: str, nodes: Path, *, num_ranks: int = 2) -> list[object]:
    """Return the options of a run whose ranks write below a directory that stands for each node's own disk."""
    ranks = ["--num_ranks", num_ranks, "--gpus_per_rank", 1, "--device", "cpu"]
    return ["--cluster", "ray", "--ray_address", address, "--node_dir", nodes, *ranks]


SLOW, QUICK = {STEP_S: "0.02"}, {STEP_S: "0"}
NUM_EPISODES = 24
GO = "go"
GIVEN_BACK_S, OVER_S = 30.0, 60.0


def write_mortal_jobs(directory: Path) -> Path:
    """Write a job file whose episodes go on once the file `GO` lies beside it."""
    job = {
        "name": "mortal",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.evaluation.cluster.policies.MortalPolicy",
        "policy_config_dict": {"marks": str(directory), "waits_for": str(directory / GO)},
        "num_episodes": NUM_EPISODES,
    }
    return write_jobs(directory / "jobs.json", [job])


class Driven:
    """A run on a cluster, watched from outside.

    Args:
        directory: Where it writes.
        jobs: Its job file.
        address: Address of the cluster.
        options: Further words of its command line.
    """

    def __init__(self, directory: Path, jobs: Path, address: str, *options: object, num_ranks: int = 2) -> None:
        self.output = directory / "out"
        self.log = directory / "driver.txt"
        words = ["--eval_jobs_config", jobs, "--output_dir", self.output, *options]
        on_ray = on_cluster(address, directory / "nodes", num_ranks=num_ranks)
        self.process = start(command(*words, *on_ray), self.log, fresh=True)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something comes true, or fail with what the run said; a run that has ended is not waited for."""

        def came_true_or_is_over() -> bool:
            time.sleep(0.1)
            return condition() or self.process.poll() is not None

        wait_until(came_true_or_is_over, timeout_s=patience_s(120))
        assert condition(), self.said

    def let_ranks_begin_together(self, jobs: Path, num_ranks: int) -> None:
        """Let the ranks go on once that many have an episode under way."""
        self.wait_for(lambda: ranks_at_work(self.output) == set(range(num_ranks)))
        (jobs.parent / GO).touch()

    def wait_for_episodes(self, number: int) -> None:
        self.wait_for(lambda: committed(self.output).total() >= number)

    def pid_of(self, rank: int) -> int:
        return json.loads((self.output / "logs" / f"rank{rank}.status.json").read_text())["pid"]

    def end(self, *, since_s: float, code: int = 0) -> None:
        """Wait for its end, which must come within a minute of a moment, by the monotonic clock."""
        left_s = since_s + patience_s(OVER_S) - time.monotonic()
        assert self.process.wait(timeout=left_s) == code, self.said


@contextmanager
def driven(*arguments: Any, **options: Any) -> Iterator[Driven]:
    running = Driven(*arguments, **options)
    try:
        yield running
    finally:
        kill(running.process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with all its processes, except those of a cluster that was there before."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed(output: Path) -> Counter[int]:
    """Count the commit lines of each episode."""
    lines = [line for path in output.glob("*/episode_results_rank*.jsonl") for line in whole_lines(path)]
    return Counter(json.loads(line)["episode_index"] for line in lines)


def ranks_at_work(output: Path) -> set[int]:
    """Return the ranks that have an episode under way."""
    # A program that was killed leaves the files of its ranks, until those of the next one write theirs.
    told = [json.loads(path.read_text()) for path in output.glob("logs/rank*.status.json")]
    alive = [status for status in told if Path(f"/proc/{status['pid']}").exists()]
    return {status["rank"] for status in alive if status["current_job"] and status["state"] == "running"}


def whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def node_of(pid: int) -> int:
    """Return the process of the node that a rank is on, which has started the rank's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def claim_servers_of(cluster: Any) -> set[int]:
    """Return the processes of the claim servers of a cluster's runs, which are on its first node."""
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {process for process in processes if is_claim_server(process, cluster)}


def is_claim_server(process: int, cluster: Any) -> bool:
    """Whether a process is a claim server of a run on a cluster; one that has ended meanwhile is none."""
    with suppress(OSError):
        command_line = Path(f"/proc/{process}/cmdline").read_bytes()
        return command_line.startswith(b"ray::ClaimServerActor") and node_of(process) == head_of(cluster)
    return False


def head_of(cluster: Any) -> int:
    """Return the process of a cluster's first node, which starts the others there."""
    return cluster.head_node.all_processes["raylet"][0].process.pid


def assert_nothing_lost_or_twice(output: Path, undisturbed: Path) -> None:
    assert committed(output) == Counter(range(NUM_EPISODES))
    assert same_tables(output, undisturbed)


def resumed(jobs: Path, output: Path, *, ranks: int = 1) -> list[str]:
    options = ["--assignment", "dynamic"] if ranks > 1 else []
    return command("--eval_jobs_config", jobs, "--resume", output, *options, ranks=ranks)
