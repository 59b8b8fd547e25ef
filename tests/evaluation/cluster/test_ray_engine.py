"""Runs on a Ray cluster of two nodes that share no directory, with GPUs that are only pretended."""

from collections.abc import Iterator

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import command, jobs_table, patience_s, run, same_tables, write_jobs
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
    assert f"has failed first: cannot make a directory in {nodes}: Not a directory; the run stops" in on_ray.stderr
    assert on_ray.stderr.count("has failed first") == 1
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
