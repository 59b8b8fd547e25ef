"""What is killed while a run on a Ray cluster goes on: ranks, nodes and the program itself, at random moments."""

import json
import logging
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, start, wait_until, write_jobs

pytest.importorskip("ray")

from tests.evaluation.cluster.clusters import add_node, cluster_of, on_cluster
from tests.evaluation.cluster.policies import STEP_S

pytestmark = pytest.mark.slow

SLOW, QUICK = {STEP_S: "0.02"}, {STEP_S: "0"}
NUM_EPISODES = 24
GO = "go"
GIVEN_BACK_S, OVER_S = 30.0, 60.0


@pytest.fixture
def moments() -> random.Random:
    """Draws the moments; a failed test shows the seed, which MOMENTS_SEED repeats."""
    seed = int(os.environ.get("MOMENTS_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger(__name__).warning("MOMENTS_SEED=%d", seed)
    return random.Random(seed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Give a cluster of two nodes, whose policies take their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STEP_S, SLOW[STEP_S])
        with cluster_of(2) as nodes:
            yield nodes


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("jobs")
    job = {
        "name": "mortal",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.evaluation.cluster.policies.MortalPolicy",
        "policy_config_dict": {"marks": str(directory), "waits_for": str(directory / GO)},
        "num_episodes": NUM_EPISODES,
    }
    (directory / GO).touch()
    return write_jobs(directory / "jobs.json", [job])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", output), extra=QUICK)
    assert alone.returncode == 0, alone.stderr
    return output


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

    def end(self) -> None:
        """Wait for its end, which must not take longer than a minute."""
        assert self.process.wait(timeout=patience_s(OVER_S)) == 0, self.said


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
    told = [json.loads(path.read_text()) for path in output.glob("logs/rank*.status.json")]
    return {status["rank"] for status in told if status["current_job"] and status["state"] == "running"}


def whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def assert_nothing_lost_or_twice(output: Path, undisturbed: Path) -> None:
    assert committed(output) == Counter(range(NUM_EPISODES))
    assert same_tables(output, undisturbed)


def test_a_rank_that_is_killed_gives_its_episodes_back_in_time(tmp_path, jobs, undisturbed, moments, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address) as running:
        running.let_ranks_begin_together(jobs, 2)
        running.wait_for_episodes(moments.randint(1, NUM_EPISODES // 2))
        time.sleep(moments.random())
        os.kill(running.pid_of(1), signal.SIGKILL)
        killed_s = time.monotonic()
        running.wait_for(lambda: "rank 1 has died" in running.said)
        assert time.monotonic() - killed_s < patience_s(GIVEN_BACK_S)
        running.end()
    assert_nothing_lost_or_twice(tmp_path / "out", undisturbed)


def node_of(pid: int) -> int:
    """Return the process of the node that a rank is on, which has started the rank's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_node_that_is_removed_takes_no_episode_with_it(tmp_path, jobs, undisturbed, moments, cluster):
    head = cluster.head_node.all_processes["raylet"][0].process.pid
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address) as running:
        running.let_ranks_begin_together(jobs, 2)
        running.wait_for_episodes(moments.randint(1, NUM_EPISODES // 2))
        time.sleep(moments.random())
        rank = next(each for each in range(2) if node_of(running.pid_of(each)) != head)
        os.kill(node_of(running.pid_of(rank)), signal.SIGKILL)
        killed_s = time.monotonic()
        running.wait_for(lambda: f"rank {rank} has died" in running.said)
        assert time.monotonic() - killed_s < patience_s(GIVEN_BACK_S)
        running.end()
    add_node(cluster)
    assert_nothing_lost_or_twice(tmp_path / "out", undisturbed)


def test_two_nodes_that_join_in_mid_run_play_episodes_too(tmp_path, jobs, undisturbed, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address, num_ranks=4) as running:
        running.wait_for(lambda: {0, 1} <= ranks_at_work(running.output))
        joined = [add_node(cluster) for _ in range(2)]
        running.let_ranks_begin_together(jobs, 4)
        running.end()
    for node in joined:
        cluster.remove_node(node)
    assert_nothing_lost_or_twice(tmp_path / "out", undisturbed)
    lines = [line for path in (tmp_path / "out").glob("*/episode_results_rank*.jsonl") for line in whole_lines(path)]
    assert {json.loads(line)["rank"] for line in lines} == {0, 1, 2, 3}


def test_a_program_that_is_killed_goes_on_elsewhere_and_on_the_cluster_again(
    tmp_path, jobs, undisturbed, moments, cluster
):
    output = tmp_path / "out"
    (jobs.parent / GO).touch()
    with driven(tmp_path, jobs, cluster.address) as running:
        running.wait_for_episodes(moments.randint(1, 8))
        time.sleep(moments.random())
    enough = committed(output).total() + moments.randint(1, 4)
    torchrun = start(resumed(jobs, output, ranks=2), tmp_path / "torchrun.txt", extra=SLOW)
    try:
        wait_until(
            lambda: committed(output).total() >= enough or torchrun.poll() is not None,
            timeout_s=patience_s(120),
        )
        assert torchrun.poll() is None, (tmp_path / "torchrun.txt").read_text()
    finally:
        kill(torchrun)
    before = committed(output).total()
    with driven(tmp_path, jobs, cluster.address, "--resume", output) as running:
        running.wait_for_episodes(before + moments.randint(1, 4))
        time.sleep(moments.random())
    killed_s = time.monotonic()
    last = run(resumed(jobs, output), extra=QUICK, timeout_s=patience_s(120))
    assert last.returncode == 0, last.stderr
    assert time.monotonic() - killed_s < patience_s(OVER_S)
    assert_nothing_lost_or_twice(output, undisturbed)


def resumed(jobs: Path, output: Path, *, ranks: int = 1) -> list[str]:
    options = ["--assignment", "dynamic"] if ranks > 1 else []
    return command("--eval_jobs_config", jobs, "--resume", output, *options, ranks=ranks)


def test_torchrun_gives_the_tables_of_one_process_as_the_cluster_does(tmp_path, jobs, undisturbed):
    finished = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "out", ranks=2), extra=QUICK, timeout_s=300
    )
    assert finished.returncode == 0, finished.stderr
    assert same_tables(tmp_path / "out", undisturbed)
