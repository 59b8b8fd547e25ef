"""What is killed while a run on a Ray cluster goes on: ranks, nodes and the program itself, at random moments."""

import json
import logging
import os
import random
import signal
import time
from collections import Counter

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
    claim_servers_of,
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


def test_a_rank_and_a_node_are_lost_and_two_nodes_that_join_are_used(tmp_path, jobs, undisturbed, moments, cluster):
    (jobs.parent / GO).unlink(missing_ok=True)
    with driven(tmp_path, jobs, cluster.address, num_ranks=4) as running:
        running.wait_for(lambda: len(ranks_at_work(running.output)) == 2)
        (jobs.parent / GO).touch()
        running.wait_for_episodes(moments.randint(1, NUM_EPISODES // 2))
        time.sleep(moments.random())
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


def test_the_program_is_killed_and_then_the_claim_server_and_another_program_goes_on(
    tmp_path, jobs, undisturbed, cluster
):
    (jobs.parent / GO).touch()
    with driven(tmp_path, jobs, cluster.address) as running:
        running.wait_for_episodes(1)
        lost = claim_servers_of(cluster)
    killed_s = time.monotonic()
    with driven(tmp_path, jobs, cluster.address, "--resume", running.output) as running:
        # The ranks of the program that was killed commit episodes until Ray has noticed, on a busy machine for seconds.
        running.wait_for(lambda: bool(claim_servers := claim_servers_of(cluster)) and not claim_servers & lost)
        running.wait_for_episodes(committed(running.output).total() + 1)
        (claim_server,) = claim_servers_of(cluster)
        os.kill(claim_server, signal.SIGKILL)
        running.end(since_s=time.monotonic(), code=1)
        (told,) = [line for line in running.said.splitlines() if line.startswith("error: ")]
        assert told.startswith("error: the run's claim server does not answer: The actor ")
        assert told.endswith(f"continue with the same command and --resume {running.output}")
        assert "Traceback" not in running.said
    assert not [*running.output.rglob("traceback_*"), *running.output.rglob("job_report_*")]
    last = run(resumed(jobs, running.output), extra=QUICK, timeout_s=patience_s(120))
    assert last.returncode == 0, last.stderr
    assert time.monotonic() - killed_s < patience_s(120)
    assert_nothing_lost_or_twice(running.output, undisturbed)


@pytest.mark.timeout(10_800)
def test_sixty_kills_of_ranks_and_programs_lose_nothing_and_run_nothing_twice(
    tmp_path, jobs, undisturbed, moments, cluster
):
    (jobs.parent / GO).touch()
    kills, number = Counter[str](), 0
    while kills.total() < 60:
        directory, resume, is_over = tmp_path / f"run{number}", tuple[object, ...](), False
        directory.mkdir()
        number += 1
        while not is_over:
            with driven(directory, jobs, cluster.address, *resume) as running:
                running.wait_for_episodes(min(NUM_EPISODES, committed(running.output).total() + 1))
                # A second death of the same episode's rank would be the episode's fault, so a program loses one rank.
                at_work = sorted(ranks_at_work(running.output))
                if at_work and running.process.poll() is None:
                    os.kill(running.pid_of(moments.choice(at_work)), signal.SIGKILL)
                    kills["rank"] += 1
                if is_over := bool(resume):
                    running.end(since_s=time.monotonic())
                else:
                    running.wait_for_episodes(min(NUM_EPISODES, committed(running.output).total() + 2))
                    kills["program"] += running.process.poll() is None
            resume = ("--resume", directory / "out")
        assert_nothing_lost_or_twice(directory / "out", undisturbed)
    logging.getLogger(__name__).warning("%s in %d runs", dict(kills), number)
