"""More ranks than GPUs, devices that a job names and a launcher overrules, and what draws beside the simulation."""

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.distributed.devices.egl_devices import draw_on
from isaaclab_arena.environments.gym.builder import GymBuilder, GymConfig
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.end_to_end.launching import write_jobs
from tests.machine import show_gpus

CARTPOLE = str(Path(__file__).parents[2] / "models" / "cartpole")


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

    def arrange(gpus: int, *, local_rank: int | None = None, ranks: int = 1) -> None:
        show_gpus(monkeypatch, gpus)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        if local_rank is not None:
            for name, value in {"RANK": local_rank, "LOCAL_RANK": local_rank}.items():
                monkeypatch.setenv(name, str(value))
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                monkeypatch.setenv(name, str(ranks))
            monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
            monkeypatch.setenv("MASTER_PORT", "29517")

    return arrange


def started(tmp_path: Path, *jobs: dict[str, Any], more: tuple[str, ...] = ()) -> int:
    path = write_jobs(tmp_path / "jobs.json", list(jobs))
    return eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(tmp_path / "out"), *more])


def resolved(tmp_path: Path, *jobs: dict[str, Any], **options: Any):
    path = write_jobs(tmp_path / "jobs.json", list(jobs))
    return resolve_jobs(load_jobs_file(str(path), JobDefaults()).jobs, file=str(path), **options)


def device_of(job: Job) -> torch.device:
    policy = job.build_policy()
    assert isinstance(policy, RslRlPolicy)
    return policy.device


def test_under_a_launcher_the_cpu_that_is_asked_for_is_the_policys_too(tmp_path, machine):
    machine(4, local_rank=0)
    assert started(tmp_path, network(), more=("--device", "cpu")) == 0
    plan = json.loads((tmp_path / "out" / "run.json").read_text())
    assert plan["devices"] == ["cpu"]
    # Where a policy runs may be another one when the run is resumed, so it is no part of the job.
    assert "policy_device" not in plan["jobs"][0]["policy_config"]


def test_a_job_may_say_so_for_its_own_policy(tmp_path, machine):
    machine(4, local_rank=5, ranks=6)
    [job] = resolved(tmp_path, network(policy_device="cpu"))
    assert device_of(job) == torch.device("cpu")


def test_the_way_out_of_too_few_gpus_works_for_every_rank(tmp_path, machine):
    for rank in range(6):
        machine(4, local_rank=rank, ranks=6)
        [job] = resolved(tmp_path, network(), device="cpu")
        assert device_of(job) == torch.device("cpu")
        with pytest.raises(ConfigError, match="only 4 GPUs are visible"):
            resolved(tmp_path, network())


def test_a_policy_that_asks_for_a_gpu_gets_its_ranks_though_the_simulation_is_on_the_cpu(tmp_path, machine):
    machine(4, local_rank=3, ranks=4)
    [job] = resolved(tmp_path, network(policy_device="cuda"), device="cpu")
    assert job.policy_placement == {}


def test_without_a_launcher_the_policy_chooses_as_it_did(tmp_path, machine):
    machine(4)
    [job] = resolved(tmp_path, network(), device="cpu")
    assert job.policy_placement == {}


@pytest.mark.parametrize("local_rank", [0, 5])
def test_gpus_that_ranks_cannot_share_evenly_are_refused_before_anything_is_built(tmp_path, machine, capfd, local_rank):
    machine(4, local_rank=local_rank, ranks=6)
    assert started(tmp_path, network()) == 2
    shown = capfd.readouterr().err
    # The others leave the telling to rank 0.
    assert ("only 4 GPUs are visible" in shown) == (local_rank == 0)
    assert ("6 ranks cannot share them evenly" in shown) == (local_rank == 0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("gpus", [0, 4])
@pytest.mark.parametrize(
    "named", [{"policy_device_id": 7}, {"policy_device": "cuda:7"}, {"device": "cuda:7"}], ids=["id", "name", "alias"]
)
def test_a_gpu_that_is_not_there_is_refused_for_any_number_of_ranks(tmp_path, machine, ranks, gpus, named):
    machine(gpus, local_rank=None if ranks is None else ranks - 1, ranks=ranks or 1)
    with pytest.raises(ConfigError, match="'cuda:7' does not exist"):
        resolved(tmp_path, network(**named))


def test_gpus_that_the_launcher_overrules_are_told_in_one_line(tmp_path, machine, caplog):
    machine(4, local_rank=2, ranks=4)
    with caplog.at_level(logging.INFO, logger="isaaclab_arena"):
        resolved(
            tmp_path,
            network("a", policy_device="cuda:0"),
            network("b", policy_device="cuda:0"),
            network("c", policy_device_id=1),
            network("d", policy_device="cuda"),
            network("e"),
        )
    [line] = [record.getMessage() for record in caplog.records if "own GPU" in record.getMessage()]
    assert line == (
        "under a launcher each rank's policy runs on the rank's own GPU: no effect has policy_device 'cuda:0' of job "
        "'a', policy_device_id 1 of job 'c'"
    )


def test_workers_that_draw_are_told_which_gpu_is_their_ranks(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    # EGL counts from the other end.
    draw = partial(draw_on, egl_gpus=lambda: [3, 2, 1, 0])
    noted = tmp_path / "noted"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$MUJOCO_EGL_DEVICE_ID" > {noted}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    builder = GymBuilder(config_class=GymConfig, kind="gym", name="CartPole-v1", install_hint="", draw_on=draw)
    try:
        device = torch.device("cuda", 1)
        builder.build(GymConfig(python=str(python)), num_envs=1, device=device, num_threads=1).close()
    finally:
        monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    assert noted.read_text() == "2\n"
