"""Where a job's policy runs: the device that the job or the command line names, and what a launcher overrules."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.end_to_end.launching import write_jobs
from tests.machine import be_a_rank

CARTPOLE = str(Path(__file__).parents[3] / "models" / "cartpole")


def network(name: str = "balance", **policy: Any) -> dict[str, Any]:
    return {
        "name": name,
        "arena_env_args": {"environment": "cartpole", "num_envs": 2},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": CARTPOLE, **policy},
        "num_episodes": 2,
    }


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Pretend that this process is a rank on a machine with some GPUs."""
    return partial(be_a_rank, monkeypatch)


def resolved(tmp_path: Path, *jobs: dict[str, Any], **options: Any):
    path = write_jobs(tmp_path / "jobs.json", list(jobs))
    return resolve_jobs(load_jobs_file(str(path)).jobs, file=str(path), **options)


def device_of(job: Job) -> torch.device:
    policy = job.build_policy()
    assert isinstance(policy, RslRlPolicy)
    return policy.device


def test_the_ways_out_of_too_few_gpus_work_for_every_rank(tmp_path, machine):
    for rank in (0, 5):
        machine(4, local_rank=rank, ranks=6)
        for jobs, options in ((network(), {"device": "cpu"}), (network(policy_device="cpu"), {})):
            [job] = resolved(tmp_path, jobs, **options)
            assert device_of(job) == torch.device("cpu")
        with pytest.raises(ConfigError, match="4 GPUs"):
            resolved(tmp_path, network())


@pytest.mark.parametrize(
    ("ranks", "policy"), [({"local_rank": 3, "ranks": 4}, {"policy_device": "cuda"}), ({}, {})], ids=["asks", "alone"]
)
def test_a_policy_that_asks_for_a_gpu_or_has_no_launcher_chooses_though_the_simulation_is_on_the_cpu(
    tmp_path, machine, ranks, policy
):
    machine(4, **ranks)
    [job] = resolved(tmp_path, network(**policy), device="cpu")
    assert job.policy_placement == {}
