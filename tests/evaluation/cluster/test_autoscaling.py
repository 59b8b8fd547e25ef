"""A cluster that has no node for a rank when a run begins, and starts nodes because the run asks for them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, write_jobs
from tests.evaluation.cluster.clusters import RAY_VARIABLES, on_cluster

pytest.importorskip("ray")

JOBS = [
    {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 12,
    }
]
NODE_TYPES = {
    "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
    "gpu": {"resources": {"CPU": 1, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
}
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
CONFIG = {
    "cluster_name": "starts_with_nothing",
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "head_node_type": "ray.head.default",
    "available_node_types": NODE_TYPES,
    "max_workers": 2,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 10,
    "auth": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    **{f"{kind}_commands": [] for kind in COMMANDS},
}
"""What Ray's own pretended cluster is made of; its wheel lacks the file from which `AutoscalingCluster` reads it."""


@pytest.fixture
def _cluster(tmp_path) -> Iterator[None]:
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    pretended = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", **RAY_VARIABLES}
    # The provider starts nodes by the command `ray`.
    variables = {**os.environ, **pretended, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    started = [*ray, "start", "--head", "--num-cpus=1", "--object-store-memory=100000000"]
    subprocess.run([*started, f"--autoscaling-config={config}"], env=variables, check=True)
    yield
    # This ends every Ray of the machine, so the test is none for `make test`.
    subprocess.run([*ray, "stop", "--force"], env=variables, check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("_cluster")
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
