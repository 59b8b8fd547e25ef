"""Runs on a Ray cluster of two nodes that share no directory, with GPUs that are only pretended."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import command, episodes_table, jobs_table, patience_s, run, same_tables, write_jobs
from tests.evaluation.cluster.clusters import cluster_of, on_cluster

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


@pytest.mark.slow
def test_a_rank_that_cannot_write_on_its_node_ends_the_run_and_is_told_first(tmp_path, address):
    jobs = write_jobs(tmp_path / "jobs.json", JOBS)
    (tmp_path / "file").touch()
    nodes = tmp_path / "file" / "nodes"
    on_ray = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster(address, nodes)),
        fresh=True,
        timeout_s=patience_s(120),
    )
    assert on_ray.returncode == 1
    assert f"failed first: cannot make a directory in {nodes}: Not a directory; the run ends" in on_ray.stderr
    assert on_ray.stderr.count("failed first") == 1
    assert "has died" not in on_ray.stderr
    assert "Traceback" not in on_ray.stderr
    assert set(jobs_table(tmp_path / "ray")["status"]) == {"missing"}


@pytest.mark.slow
def test_a_run_whose_nodes_see_its_directory_is_the_same_and_nothing_travels(tmp_path, address):
    jobs = write_jobs(tmp_path / "jobs.json", JOBS)
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    words = ["--cluster", "ray", "--ray_address", address, "--num_ranks", 2, "--gpus_per_rank", 1, "--device", "cpu"]
    on_ray = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *words),
        fresh=True,
        timeout_s=patience_s(120),
    )
    assert (alone.returncode, on_ray.returncode) == (0, 0), on_ray.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")
    # Ranks consolidate in place, each what it has played itself; nothing is left of a node's own directory.
    assert len(list((tmp_path / "ray").glob("*/dataset_*_rank*.hdf5"))) >= 2


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
def test_a_rank_that_dies_once_costs_neither_an_episode_nor_a_byte(tmp_path, address):
    jobs = mortal_jobs(tmp_path, deadly_episode=3, deaths=1)
    options = ["--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster(address, tmp_path / "nodes")]
    lossy = run(command(*options), fresh=True, timeout_s=patience_s(120))
    assert lossy.returncode == 0, lossy.stderr
    assert "has died" in lossy.stderr
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")


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


@pytest.mark.slow
def test_a_job_that_kills_every_rank_that_builds_it_fails_and_the_other_job_is_played(tmp_path, address):
    fatal = {
        "name": "fatal",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.evaluation.cluster.policies.MortalPolicy",
        "policy_config_dict": {"marks": str(tmp_path), "dies_at_birth": True},
        "num_episodes": 40,
    }
    other = {**fatal, "name": "other", "policy_type": "zero_action", "policy_config_dict": {}, "num_episodes": 4}
    jobs = write_jobs(tmp_path / "jobs.json", [fatal, other])
    options = ["--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster(address, tmp_path / "nodes")]
    lossy = run(command(*options), fresh=True, timeout_s=patience_s(240))
    assert lossy.returncode == 1, lossy.stderr
    table = jobs_table(tmp_path / "ray").set_index("name")
    assert dict(table["status"]) == {"fatal": "failed", "other": "completed"}
    assert "ranks died before the job ran an episode" in table.loc["fatal", "error"]
