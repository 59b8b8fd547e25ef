"""More ranks than GPUs, and devices that a job names and a launcher overrules."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation import eval_runner
from tests.end_to_end.launching import job, write_jobs
from tests.machine import be_a_rank

CARTPOLE = str(Path(__file__).parents[2] / "models" / "cartpole")


def network(name: str = "balance", **policy: Any) -> dict[str, Any]:
    return job("cartpole", "rsl_rl", 2, name=name, options={"checkpoint_path": CARTPOLE, **policy})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Pretend that this process is a rank on a machine with some GPUs."""
    return partial(be_a_rank, monkeypatch)


def validated(tmp_path: Path, *jobs: dict[str, Any]) -> int:
    return main(["validate", str(write_jobs(tmp_path / "jobs.json", jobs))])


def started(tmp_path: Path, *more: str) -> int:
    path = write_jobs(tmp_path / "jobs.json", [network()])
    return eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(tmp_path / "out"), *more])


def test_under_a_launcher_the_cpu_that_is_asked_for_is_the_policys_too(tmp_path, machine):
    machine(4, local_rank=0)
    assert started(tmp_path, "--device", "cpu") == 0
    plan = json.loads((tmp_path / "out" / "run.json").read_text())
    assert plan["devices"] == ["cpu"]
    # Where a policy runs may be another one when the run is resumed, so it is no part of the job.
    assert "policy_device" not in plan["jobs"][0]["policy_config"]


@pytest.mark.parametrize("local_rank", [0, 5])
def test_gpus_that_ranks_cannot_share_evenly_are_refused_before_anything_is_built(tmp_path, machine, capfd, local_rank):
    machine(4, local_rank=local_rank, ranks=6)
    assert started(tmp_path) == 2
    shown = capfd.readouterr().err
    # The others leave the telling to rank 0.
    assert ("6 ranks cannot share them evenly" in shown) == (local_rank == 0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("ranks", "gpus"), [(None, 0), (None, 4), (2, 4)])
@pytest.mark.parametrize("named", [{"policy_device_id": 7}, {"policy_device": "cuda:7"}, {"device": "cuda:7"}], ids=str)
def test_a_gpu_that_is_not_there_is_refused_for_any_number_of_ranks(tmp_path, machine, ranks, gpus, named, capsys):
    machine(gpus, local_rank=None if ranks is None else ranks - 1, ranks=ranks or 1)
    assert validated(tmp_path, network(**named)) == 2
    assert "'cuda:7' does not exist" in capsys.readouterr().err


def test_gpus_that_the_launcher_overrules_are_told_in_one_line(tmp_path, machine, caplog):
    machine(4, local_rank=2, ranks=4)
    with caplog.at_level(logging.INFO, logger="isaaclab_arena"):
        named = {"a": "cuda:0", "b": "cuda:0", "d": "cuda"}
        jobs = [network(name, policy_device=device) for name, device in named.items()]
        assert validated(tmp_path, *jobs, network("c", policy_device_id=1), network("e")) == 0
    [line] = [record.getMessage() for record in caplog.records if "own GPU" in record.getMessage()]
    assert line.endswith("these say: policy_device 'cuda:0' of job 'a', policy_device_id 1 of job 'c'")
