"""Runs on a Ray cluster of two nodes that share no directory, with GPUs that are only pretended."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import command, patience_s, run, same_tables, start, wait_until, write_jobs
from tests.evaluation.cluster.policies import STEP_S

pytest.importorskip("ray")

NODE = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
# Ray gives ranks a nice value of 15 otherwise, with which they wait for minutes beside other tests.
RAY_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
NUM_EPISODES = 24
REACH = {
    "name": "reach",
    "arena_env_args": {"environment": "reach", "num_envs": 2},
    "policy_type": "random_action",
    "num_episodes": 10,
}
LIFT = {
    "name": "lift",
    "arena_env_args": {"environment": "lift_object", "num_envs": 2},
    "policy_type": "scripted",
    "num_episodes": 6,
}


def with_patience(begin: Callable[[], Any]) -> Any:
    """Start a node; Ray gives up after half a minute, which is too short for a machine that has other things to do."""
    for _ in range(4):
        with suppress(Exception):
            return begin()
    return begin()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Give a cluster of two nodes with room for a rank each, whose slow policies take their time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {STEP_S: "0.02", **RAY_VARIABLES}.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # noqa: PLC0415  only where Ray is installed

        nodes = with_patience(lambda: Cluster(initialize_head=True, head_node_args=NODE))
        with_patience(lambda: nodes.add_node(**NODE))
        yield nodes
        nodes.shutdown()


def on_ray(cluster: Any, directory: Path, jobs: Path, *, num_ranks: int = 2) -> list[str]:
    """Return the command of a run whose ranks write below a directory that stands for each node's own disk."""
    ranks = ["--num_ranks", num_ranks, "--gpus_per_rank", 1, "--device", "cpu", "--node_dir", directory / "nodes"]
    words = ["--eval_jobs_config", jobs, "--output_dir", directory / "ray"]
    return command(*words, "--cluster", "ray", "--ray_address", cluster.address, *ranks)


@pytest.mark.slow
def test_a_run_on_two_nodes_gives_the_tables_of_one_process(tmp_path, cluster):
    jobs = write_jobs(tmp_path / "jobs.json", [REACH, LIFT])
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    together = run(on_ray(cluster, tmp_path, jobs), fresh=True, timeout_s=patience_s(120))
    assert (alone.returncode, together.returncode) == (0, 0), together.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")
    assert list((tmp_path / "nodes").iterdir()) == []
    assert main(["verify", str(tmp_path / "ray"), "--sample", "1", "--nproc", "1"]) == 0


def committed(output: Path) -> list[dict[str, Any]]:
    """Return all whole commit lines."""
    texts = [path.read_text().splitlines(keepends=True) for path in output.glob("*/episode_results_rank*.jsonl")]
    return [json.loads(line) for lines in texts for line in lines if line.endswith("\n")]


def ranks_at_work(output: Path) -> dict[int, int]:
    """Map the ranks that have an episode under way to their processes."""
    told = [json.loads(path.read_text()) for path in output.glob("logs/rank*.status.json")]
    return {each["rank"]: each["pid"] for each in told if each["current_job"] and each["state"] == "running"}


def node_of(pid: int) -> int:
    """Return the process of the node that a rank is on, which has started the rank's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_rank_and_a_node_are_lost_and_two_nodes_that_join_are_used(tmp_path, cluster):
    job = {**REACH, "policy_type": "tests.evaluation.cluster.policies.SlowPolicy", "num_episodes": NUM_EPISODES}
    jobs = write_jobs(tmp_path / "jobs.json", [{**job, "policy_config_dict": {"waits_for": str(tmp_path / "go")}}])
    output, log = tmp_path / "ray", tmp_path / "driver.txt"
    process = start(on_ray(cluster, tmp_path, jobs, num_ranks=4), log, fresh=True)

    def wait_for(condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or process.poll() is not None, timeout_s=patience_s(120))
        assert condition(), log.read_text()

    try:
        wait_for(lambda: len(ranks_at_work(output)) == 2)
        (tmp_path / "go").touch()
        moment = random.randint(1, NUM_EPISODES // 2)
        wait_for(lambda: len(committed(output)) >= moment)
        at_work, head = ranks_at_work(output), cluster.head_node.all_processes["raylet"][0].process.pid
        away = next(rank for rank, pid in at_work.items() if node_of(pid) != head)
        os.kill(node_of(at_work[away]), signal.SIGKILL)
        os.kill(at_work[next(rank for rank in at_work if rank != away)], signal.SIGKILL)
        killed_s = time.monotonic()
        for rank in at_work:
            wait_for(lambda rank=rank: f"rank {rank} has died" in log.read_text())
        assert time.monotonic() - killed_s < patience_s(30)
        for _ in range(2):
            with_patience(lambda: cluster.add_node(**NODE))
        assert process.wait(timeout=patience_s(60)) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"), extra={STEP_S: "0"})
    assert alone.returncode == 0, alone.stderr
    assert Counter(line["episode_index"] for line in committed(output)) == Counter(range(NUM_EPISODES))
    assert same_tables(output, tmp_path / "alone")
    assert len({line["rank"] for line in committed(output)}) >= 3, "nodes that joined were not used"
