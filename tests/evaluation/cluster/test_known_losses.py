"""What is killed while a run on a Ray cluster goes on, at moments that are known: `test_losses.py` draws them."""

import json
import os
import signal
import time

import pytest

from tests.end_to_end.launching import patience_s, run

pytest.importorskip("ray")

from tests.evaluation.cluster.clusters import add_node
from tests.evaluation.cluster.driving import (
    GIVEN_BACK_S,
    GO,
    QUICK,
    assert_nothing_lost_or_twice,
    claim_servers_of,
    committed,
    driven,
    head_of,
    node_of,
    ranks_at_work,
    resumed,
    whole_lines,
)

pytestmark = pytest.mark.slow


def test_a_rank_and_a_node_are_lost_and_two_nodes_that_join_are_used(tmp_path, jobs, undisturbed, cluster):
    (jobs.parent / GO).unlink()
    with driven(tmp_path, jobs, cluster.address, num_ranks=4) as running:
        running.wait_for(lambda: len(ranks_at_work(running.output)) == 2)
        (jobs.parent / GO).touch()
        running.wait_for_episodes(1)
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
        assert told.endswith(f"go on with the same command and --resume {running.output}")
        assert "Traceback" not in running.said
    assert not [*running.output.rglob("traceback_*"), *running.output.rglob("job_report_*")]
    last = run(resumed(jobs, running.output), extra=QUICK, timeout_s=patience_s(120))
    assert last.returncode == 0, last.stderr
    assert time.monotonic() - killed_s < patience_s(120)
    assert_nothing_lost_or_twice(running.output, undisturbed)
