"""Where a job's policy runs: the device that the job or the command line names, and what a launcher overrules."""

from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.end_to_end.launching import write_jobs
from tests.machine import be_a_rank
from tests.outsiders.test_devices_of_ranks import network


def resolved(tmp_path: Path, *jobs: dict[str, Any], **options: Any):
    path = write_jobs(tmp_path / "jobs.json", list(jobs))
    return resolve_jobs(load_jobs_file(str(path)).jobs, file=str(path), **options)


def test_the_ways_out_of_too_few_gpus_work_for_every_rank(tmp_path, monkeypatch):
    for rank in (0, 5):
        be_a_rank(monkeypatch, 4, local_rank=rank, ranks=6)
        for jobs, options in ((network(), {"device": "cpu"}), (network(policy_device="cpu"), {})):
            [job] = resolved(tmp_path, jobs, **options)
            policy = job.build_policy()
            assert isinstance(policy, RslRlPolicy)
            assert policy.device == torch.device("cpu")
        with pytest.raises(ConfigError, match="4 GPUs"):
            resolved(tmp_path, network())


@pytest.mark.parametrize(
    ("ranks", "policy"), [({"local_rank": 3, "ranks": 4}, {"policy_device": "cuda"}), ({}, {})], ids=["asks", "alone"]
)
def test_a_policy_that_asks_for_a_gpu_or_has_no_launcher_chooses_though_the_simulation_is_on_the_cpu(
    tmp_path, monkeypatch, ranks, policy
):
    be_a_rank(monkeypatch, 4, **ranks)
    [job] = resolved(tmp_path, network(**policy), device="cpu")
    assert job.policy_placement == {}
