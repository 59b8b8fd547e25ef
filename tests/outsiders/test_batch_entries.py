"""A job of an exported network is called ``bitwise`` where an answer depends on nothing but its own batch entry."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import evaluated, job, jobs_table, write_jobs

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "UserWarning", "torch.jit.TracerWarning")
]


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


def onnx(path: Path, network: torch.nn.Module, batch_size: int = 1, **seen: Any) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.onnx.export(network, (torch.zeros(batch_size, 26),), str(path), opset_version=18, dynamo=False, **seen)
    return path


def onnx_for_any_batch_size(path: Path, network: torch.nn.Module) -> Path:
    return onnx(path, network, input_names=["obs"], dynamic_axes={"obs": {0: "batch"}})


KINDS = {"policy.pt": torchscript, "policy.onnx": onnx, "any.onnx": onnx_for_any_batch_size}


def playing(file: Path, *, num_envs: int) -> dict:
    options = {"checkpoint_path": os.fspath(file), "action_scaling": "within_bounds"}
    return job("reach", "rsl_rl", 4, num_envs=num_envs, options=options)


@pytest.mark.parametrize(
    ("network", "name", "promised"),
    [
        *((Picked(), name, "bitwise") for name in KINDS),
        (Placed(), "policy.pt", "plan"),
        (Placed(), "any.onnx", "plan"),
        # It is asked entry by entry.
        (Placed(), "policy.onnx", "bitwise"),
    ],
)
def test_an_exported_network_is_bitwise_where_its_batch_entries_stand_alone(tmp_path, network, name, promised):
    output = evaluated(tmp_path / "out", playing(KINDS[name](tmp_path / name, network), num_envs=3))
    [told] = jobs_table(output).to_dict("records")
    assert (told["reproducible"], told["policy_batch"], told["episodes"]) == (promised, 4, 4)


def test_an_onnx_file_for_a_fixed_batch_is_refused_before_anything_starts(tmp_path, capsys):
    file = onnx(tmp_path / "eight.onnx", Picked(), batch_size=8)
    jobs = write_jobs(tmp_path / "jobs.json", [playing(file, num_envs=8)])
    capsys.readouterr()
    assert main(["validate", str(jobs), "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], problem["job"]) == (str(jobs), "a")
    assert problem["key"] == "policy_config_dict.checkpoint_path"
    assert f"{file}: is for a batch of 8; export it for a batch of 1, or of any size" in problem["message"]
