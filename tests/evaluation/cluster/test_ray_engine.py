"""Runs on a Ray cluster of two nodes that share no directory, with GPUs that are only pretended."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import (
    command,
    patience_s,
    run,
    same_tables,
    start,
    wait_until,
    write_jobs,
)
from tests.evaluation.cluster.policies import STEP_S

pytest.importorskip("ray")

NODE = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
# Ray gives ranks a nice value of 15 otherwise, with which they wait for minutes beside other tests.
RAY_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


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


class Driven:
    """A run on a cluster, watched from outside."""

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


def head_of(cluster: Any) -> int:
    """Return the process of a cluster's first node, which starts the others there."""
    return cluster.head_node.all_processes["raylet"][0].process.pid


def assert_nothing_lost_or_twice(output: Path, undisturbed: Path) -> None:
    assert committed(output) == Counter(range(NUM_EPISODES))
    assert same_tables(output, undisturbed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Give a cluster of two nodes with room for a rank each, whose policies take their time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SLOW, **RAY_VARIABLES}.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # noqa: PLC0415  only where Ray is installed

        nodes = with_patience(lambda: Cluster(initialize_head=True, head_node_args=NODE))
        add_node(nodes)
        yield nodes
        nodes.shutdown()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """Write a job file whose episodes go on once the file `GO` lies beside it."""
    directory = tmp_path_factory.mktemp("jobs")
    (directory / GO).touch()
    job = {
        "name": "slow",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.evaluation.cluster.policies.SlowPolicy",
        "policy_config_dict": {"waits_for": str(directory / GO)},
        "num_episodes": NUM_EPISODES,
    }
    return write_jobs(directory / "jobs.json", [job])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", output), extra=QUICK)
    assert alone.returncode == 0, alone.stderr
    return output


pytest.importorskip("ray")

JOBS = [
    {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 10,
    },
    {
        "name": "lift",
        "arena_env_args": {"environment": "lift_object", "num_envs": 2},
        "policy_type": "scripted",
        "num_episodes": 6,
    },
]


def test_a_run_on_two_nodes_gives_the_tables_of_one_process(tmp_path, cluster):
    jobs = write_jobs(tmp_path / "jobs.json", JOBS)
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    on_ray = run(
        command(
            "--eval_jobs_config",
            jobs,
            "--output_dir",
            tmp_path / "ray",
            *on_cluster(cluster.address, tmp_path / "nodes"),
        ),
        fresh=True,
        timeout_s=patience_s(120),
    )
    assert (alone.returncode, on_ray.returncode) == (0, 0), on_ray.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")
    assert list((tmp_path / "nodes").iterdir()) == []
    assert main(["verify", str(tmp_path / "ray"), "--sample", "1", "--nproc", "1"]) == 0


@pytest.mark.slow
def test_a_rank_and_a_node_are_lost_and_two_nodes_that_join_are_used(tmp_path, jobs, undisturbed, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address, num_ranks=4) as running:
        running.wait_for(lambda: len(ranks_at_work(running.output)) == 2)
        (jobs.parent / GO).touch()
        running.wait_for_episodes(random.randint(1, NUM_EPISODES // 2))
        time.sleep(random.random())
        at_work = sorted(ranks_at_work(running.output))
        away = next(rank for rank in at_work if node_of(running.pid_of(rank)) != head_of(cluster))
        os.kill(node_of(running.pid_of(away)), signal.SIGKILL)
        killed_s = time.monotonic()
        os.kill(running.pid_of(*(set(at_work) - {away})), signal.SIGKILL)
        for rank in at_work:
            running.wait_for(lambda rank=rank: f"rank {rank} has died" in running.said)
        assert time.monotonic() - killed_s < patience_s(GIVEN_BACK_S)
        for _ in range(2):
            add_node(cluster)
        running.end(since_s=killed_s)
    assert_nothing_lost_or_twice(running.output, undisturbed)
    lines = [line for path in running.output.glob("*/episode_results_rank*.jsonl") for line in whole_lines(path)]
    assert len({json.loads(line)["rank"] for line in lines}) >= 3, "nodes that joined were not used"
