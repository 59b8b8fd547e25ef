"""Runs on a Ray cluster of two nodes that share no directory, with GPUs that are only pretended."""

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import (
    ROOT,
    command,
    episodes_table,
    free_port,
    jobs_table,
    patience_s,
    run,
    same_tables,
    write_jobs,
)
from tests.evaluation.cluster.driving import (
    GIVEN_BACK_S,
    GO,
    NODE,
    NUM_EPISODES,
    QUICK,
    RAY_VARIABLES,
    add_node,
    assert_nothing_lost_or_twice,
    claim_servers_of,
    cluster_of,
    committed,
    driven,
    head_of,
    node_of,
    on_cluster,
    ranks_at_work,
    resumed,
    whole_lines,
    with_patience,
)

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


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster_of(2) as nodes:
        yield nodes.address


def test_a_run_on_two_nodes_gives_the_tables_of_one_process(tmp_path, address):
    jobs = write_jobs(tmp_path / "jobs.json", JOBS)
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    on_ray = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster(address, tmp_path / "nodes")),
        fresh=True,
        timeout_s=patience_s(120),
    )
    assert (alone.returncode, on_ray.returncode) == (0, 0), on_ray.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")
    assert list((tmp_path / "nodes").iterdir()) == []
    assert main(["verify", str(tmp_path / "ray"), "--sample", "1", "--nproc", "1"]) == 0


# Ranks that die over what they play.


def mortal_jobs(directory: Path, *, deadly_episode: int, deaths: int) -> Path:
    """Write a job file; once its deaths have happened the same file kills no rank."""
    marks = directory / "marks"
    marks.mkdir()
    job = {
        "name": "mortal",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.evaluation.cluster.policies.MortalPolicy",
        "policy_config_dict": {"marks": str(marks), "deadly_episode": deadly_episode, "deaths": deaths},
        "num_episodes": 12,
    }
    return write_jobs(directory / "jobs.json", [job])


@pytest.mark.slow
def test_an_episode_that_kills_three_ranks_in_turn_is_an_error_and_the_others_are_what_they_are(tmp_path, address):
    jobs = mortal_jobs(tmp_path, deadly_episode=5, deaths=3)
    options = ["--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster(address, tmp_path / "nodes")]
    lossy = run(command(*options), fresh=True, timeout_s=patience_s(240))
    assert lossy.returncode == 0, lossy.stderr
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    played = [json.loads((tmp_path / "marks" / str(number)).read_text()) for number in range(3)]
    assert played[1:] == [[5], [5]], "after its first death it was played with nothing beside it"
    episodes, undisturbed = episodes_table(tmp_path / "ray"), episodes_table(tmp_path / "alone")
    is_dead = episodes["episode_index"] == 5
    assert episodes[~is_dead].equals(undisturbed[~is_dead])
    (error,) = episodes[is_dead]["error"]
    assert error.count("rank ") >= 3, error
    job = jobs_table(tmp_path / "ray").iloc[0]
    assert (job["status"], job["planned"], job["errors"]) == ("completed", 12, 1)
    # It kills no rank any more, and nothing of the count is left.
    again = run(command("--eval_jobs_config", jobs, "--resume", tmp_path / "ray", "--retry_errors"))
    assert again.returncode == 0, again.stderr
    assert episodes_table(tmp_path / "ray").equals(undisturbed)


pytest.importorskip("ray")


@pytest.fixture
def moments() -> random.Random:
    """Draws the moments; a failed test shows the seed, which MOMENTS_SEED repeats."""
    seed = int(os.environ.get("MOMENTS_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger(__name__).warning("MOMENTS_SEED=%d", seed)
    return random.Random(seed)


@pytest.mark.slow
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


@pytest.mark.slow
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


pytest.importorskip("ray")


POLICY = """
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy


class BroughtAlong(RandomActionPolicy):
    name = "brought_along"
"""


@pytest.fixture
def dashboard(monkeypatch) -> Iterator[str]:
    """Give the address of the dashboard of a node with room for two ranks, which takes jobs.

    Several nodes on one machine share the place that Ray brings files to, and clear it up for each other.
    """
    for name, value in RAY_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster  # noqa: PLC0415  only where Ray is installed

    port = free_port()
    head = {**NODE, "num_cpus": 2, "num_gpus": 2, "include_dashboard": True, "dashboard_port": port}
    cluster = with_patience(lambda: Cluster(initialize_head=True, head_node_args=head))
    yield f"http://127.0.0.1:{port}"
    cluster.shutdown()


@pytest.mark.slow
def test_a_job_file_and_a_class_that_only_the_sender_has_are_run_where_the_cluster_is(tmp_path, dashboard):
    working_directory = tmp_path / "sent"
    working_directory.mkdir()
    (working_directory / "brought_along.py").write_text(POLICY)
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "brought_along.BroughtAlong",
        "num_episodes": 6,
    }
    write_jobs(working_directory / "jobs.json", [job])
    on_ray = ["--cluster", "ray", "--num_ranks", 2, "--gpus_per_rank", 1, "--device", "cpu", "--node_dir", tmp_path]
    evaluation = command("--eval_jobs_config", "jobs.json", "--output_dir", tmp_path / "out", *on_ray)
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", dashboard]
    sent = run(
        [*submit, "--working-dir", str(working_directory), "--", *evaluation],
        fresh=True,
        directory=working_directory,
        timeout_s=patience_s(180),
        extra=RAY_VARIABLES,
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    table = jobs_table(tmp_path / "out")
    assert (table["status"].tolist(), table["planned"].tolist()) == (["completed"], [6])
