"""What is refused before a cluster is asked for anything."""

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.cluster import execute_on_cluster
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.options import ClusterOptions
from tests.end_to_end.launching import write_jobs

JOB = {
    "arena_env_args": {"environment": "reach", "action_mode": "ee_delta"},
    "policy_type": "rsl_rl",
    "policy_config_dict": {"checkpoint_path": "models/reach"},
    "num_episodes": 2,
}


def nobody(options: ClusterOptions):
    raise AssertionError("a cluster was asked for")


def test_a_shared_policy_server_is_refused_with_its_key_its_jobs_and_the_way_out(tmp_path):
    jobs = [
        {**JOB, "name": "alone"},
        {**JOB, "name": "served", "policy_server": {"shared": "node"}},
        {**JOB, "name": "served by one", "policy_server": {"shared": "run"}},
    ]
    file = write_jobs(tmp_path / "jobs.json", jobs)
    request = asked_for(("--eval_jobs_config", str(file), "--cluster", "ray"), may_import=True)
    with pytest.raises(ConfigError) as refused:
        execute_on_cluster(request, ClusterOptions(cluster="ray"), connect=nobody)
    first, second = map(str, refused.value.problems)
    assert first.startswith(f"{file}: job 'served': policy_server.shared: 'node': ranks of a cluster share no policy ")
    assert "leave policy_server out, and each rank has the network itself, or run this job under torchrun" in first
    assert second.startswith(f"{file}: job 'served by one': policy_server.shared: 'run': ")
