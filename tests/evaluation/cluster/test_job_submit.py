"""``ray job submit --working-dir``: job file and classes come along, and the run goes on where the head is."""

import sys
from collections.abc import Iterator

import pytest

from tests.end_to_end.launching import ROOT, command, free_port, jobs_table, patience_s, run, write_jobs

pytest.importorskip("ray")

from tests.evaluation.cluster.clusters import NODE, RAY_VARIABLES, with_patience

pytestmark = pytest.mark.slow

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
