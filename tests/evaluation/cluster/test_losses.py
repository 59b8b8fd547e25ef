"""What is killed while a run on a Ray cluster goes on: ranks, nodes and the program itself, at random moments."""

import json
import logging
import os
import random
import signal
import time

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, start, wait_until

pytest.importorskip("ray")

from tests.evaluation.cluster.clusters import add_node
from tests.evaluation.cluster.driving import (
    GIVEN_BACK_S,
    GO,
    NUM_EPISODES,
    OVER_S,
    QUICK,
    SLOW,
    assert_nothing_lost_or_twice,
    committed,
    driven,
    head_of,
    kill,
    node_of,
    ranks_at_work,
    resumed,
    whole_lines,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def moments() -> random.Random:
    """Draws the moments; a failed test shows the seed, which MOMENTS_SEED repeats."""
    seed = int(os.environ.get("MOMENTS_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger(__name__).warning("MOMENTS_SEED=%d", seed)
    return random.Random(seed)


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
        running.end(since_s=killed_s)
    assert_nothing_lost_or_twice(tmp_path / "out", undisturbed)


def test_a_node_that_is_removed_takes_no_episode_with_it(tmp_path, jobs, undisturbed, moments, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address) as running:
        running.let_ranks_begin_together(jobs, 2)
        running.wait_for_episodes(moments.randint(1, NUM_EPISODES // 2))
        time.sleep(moments.random())
        rank = next(each for each in range(2) if node_of(running.pid_of(each)) != head_of(cluster))
        os.kill(node_of(running.pid_of(rank)), signal.SIGKILL)
        killed_s = time.monotonic()
        running.wait_for(lambda: f"rank {rank} has died" in running.said)
        assert time.monotonic() - killed_s < patience_s(GIVEN_BACK_S)
        running.end(since_s=killed_s)
    add_node(cluster)
    assert_nothing_lost_or_twice(tmp_path / "out", undisturbed)


def test_two_nodes_that_join_in_mid_run_play_episodes_too(tmp_path, jobs, undisturbed, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address, num_ranks=4) as running:
        running.wait_for(lambda: {0, 1} <= ranks_at_work(running.output))
        joined = [add_node(cluster) for _ in range(2)]
        running.let_ranks_begin_together(jobs, 4)
        running.end(since_s=time.monotonic())
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


def test_torchrun_gives_the_tables_of_one_process_as_the_cluster_does(tmp_path, jobs, undisturbed):
    finished = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "out", ranks=2), extra=QUICK, timeout_s=300
    )
    assert finished.returncode == 0, finished.stderr
    assert same_tables(tmp_path / "out", undisturbed)
