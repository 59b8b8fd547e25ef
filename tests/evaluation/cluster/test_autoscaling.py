"""A cluster that has no node for a rank when a run begins, and starts nodes because the run asks for them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, write_jobs
from tests.evaluation.cluster.clusters import on_cluster

pytest.importorskip("ray")

JOBS = [
    {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 12,
    }
]
NODES = {"gpu": {"resources": {"CPU": 1, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}}


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # It starts and stops Ray by its command, and stopping ends every Ray of this machine: nothing for `make test`.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    from ray.cluster_utils import AutoscalingCluster  # noqa: PLC0415  only where Ray is installed

    made = AutoscalingCluster(head_resources={"CPU": 1}, worker_node_types=NODES, idle_timeout_minutes=10)
    made.start()
    yield made
    made.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_begins_where_there_is_no_rank_yet_and_ranks_join_as_their_nodes_come(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.json", JOBS)
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "alone"))
    on_ray = run(
        command("--eval_jobs_config", jobs, "--output_dir", tmp_path / "ray", *on_cluster("auto", tmp_path / "nodes")),
        fresh=True,
        timeout_s=patience_s(180),
    )
    assert (alone.returncode, on_ray.returncode) == (0, 0), on_ray.stderr
    assert same_tables(tmp_path / "ray", tmp_path / "alone")
