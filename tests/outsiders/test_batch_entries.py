"""A job of an exported network is called ``bitwise`` where an answer depends on nothing but its own batch entry."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate


class Picked(torch.nn.Module):
    """Gives half of some of the numbers that it is shown: no sum is rounded, so no processor can differ."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.5 * torch.eye(26)[:, :8])

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return seen @ self.weight


class Placed(Picked):
    """Adds to each answer what stands at which place, as nothing that was learned does."""

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return super().forward(seen) + torch.cumsum(torch.ones_like(seen[:, :8]), dim=0)


def torchscript(path: Path, network: torch.nn.Module, batch_size: int = 1) -> Path:
    torch.jit.save(torch.jit.trace(network, torch.zeros(batch_size, 26)), str(path))
    return path


def onnx(path: Path, network: torch.nn.Module, batch_size: int = 1) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.onnx.export(network, (torch.zeros(batch_size, 26),), str(path), opset_version=18, dynamo=False)
    return path


def onnx_for_any_batch_size(path: Path, network: torch.nn.Module) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    seen = {"input_names": ["obs"], "dynamic_axes": {"obs": {0: "batch"}}}
    torch.onnx.export(network, (torch.zeros(1, 26),), str(path), opset_version=18, dynamo=False, **seen)
    return path


KINDS = {"policy.pt": torchscript, "policy.onnx": onnx, "any.onnx": onnx_for_any_batch_size}


def job_file(directory: Path, file: Path, *, num_envs: int) -> Path:
    """Write a job with a network in a file."""
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": num_envs},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": os.fspath(file), "action_scaling": "within_bounds"},
        "num_episodes": 4,
    }
    (directory / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [job]}))
    return directory / "jobs.yaml"


def evaluated(directory: Path, file: Path) -> dict:
    """Run a job of 3 env slots with a network in a file, and return what the table says of it."""
    jobs = job_file(directory, file, num_envs=3)
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out")]) == 0
    [told] = pd.read_csv(directory / "out" / "results.csv").to_dict("records")
    return {str(name): value for name, value in told.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", KINDS)
def test_an_exported_network_whose_batch_entries_stand_alone_is_bitwise_on_a_batch_that_the_table_names(tmp_path, name):
    told = evaluated(tmp_path, KINDS[name](tmp_path / name, Picked()))
    assert (told["reproducible"], told["policy_batch"], told["episodes"]) == ("bitwise", 4, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("name", "promised"), [("policy.pt", "plan"), ("any.onnx", "plan"), ("policy.onnx", "bitwise")]
)
def test_an_exported_program_that_looks_at_places_is_found_out_unless_it_is_asked_entry_by_entry(
    tmp_path, name, promised
):
    told = evaluated(tmp_path, KINDS[name](tmp_path / name, Placed()))
    assert (told["reproducible"], told["policy_batch"]) == (promised, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_onnx_file_for_a_fixed_batch_is_refused_before_anything_starts(tmp_path, capsys):
    file = onnx(tmp_path / "eight.onnx", Picked(), batch_size=8)
    jobs = job_file(tmp_path, file, num_envs=8)
    capsys.readouterr()
    assert main(["validate", str(jobs), "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], problem["job"]) == (str(jobs), "reach")
    assert problem["key"] == "policy_config_dict.checkpoint_path"
    assert f"{file}: is for a batch of 8; export it for a batch of 1, or of any size" in problem["message"]
