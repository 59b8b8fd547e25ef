"""Checkpoints that are cut off, lie about their sizes or unfold: told before anything starts, and nothing is filled."""

import json
import re
import zipfile
from pathlib import Path

import mujoco_warp
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from isaaclab_arena import ConfigError, Problem, evaluate
from isaaclab_arena.results import RecordedEpisode, write_episode
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy, Gr00tClosedloopPolicyArgs
from tests.end_to_end.launching import job, write_jobs
from tests.gr00t.panda_checkpoint import write_panda_yaml
from tests.policy.checkpoints import write_checkpoint


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def problems_of(*jobs: dict) -> tuple[Problem, ...]:
    """Return the refusal of jobs before anything starts."""
    write_jobs(Path("jobs.json"), jobs)
    with pytest.raises(ConfigError) as caught:
        evaluate("jobs.json")
    return tuple(caught.value.problems)


def refusal(directory: Path, policy: str = "rsl_rl", **args: object) -> str:
    """Return the refusal of a job with the only checkpoint or recording of a directory."""
    key = {"rsl_rl": "checkpoint_path", "replay": "replay_file_path"}[policy]
    (problem,) = problems_of(job("lift_object", policy, 1, args=args, options={key: str(directory)}))
    assert problem.key == f"policy_config_dict.{key}"
    return problem.message


def with_tensor(directory: Path, name: str, tensor: torch.Tensor) -> None:
    """Replace one tensor of a checkpoint that would be fine."""
    path = write_checkpoint(directory)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["actor_state_dict"][name] = tensor
    torch.save(checkpoint, path)


def test_a_model_with_a_damaged_or_a_missing_part_is_told_with_the_option(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, file)
    yaml = write_panda_yaml(tmp_path / "p.yaml")
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, model_path=str(tmp_path))
    Gr00tClosedloopPolicy.check_options(args)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    with pytest.raises(ConfigError, match=r"names model-2\.safetensors, which is not there"):
        Gr00tClosedloopPolicy.check_options(args)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError) as caught:
        Gr00tClosedloopPolicy.check_options(args)
    (problem,) = caught.value.problems
    assert problem.key == "model_path"
    assert "cannot be loaded: model.safetensors is damaged" in problem.message


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(1).expand(10**6, 10**6), "claims 1000000000000 numbers and has fewer: they overlap"),
        (torch.zeros(8).as_strided((4, 4), (1, 1)), "claims 16 numbers and has fewer"),
        (torch.zeros(16, 3, device="meta"), "without numbers"),
        (torch.zeros(16, 3).to_sparse(), "is sparse"),
        (torch.zeros(16, 3, dtype=torch.complex64), "holds complex numbers"),
        (torch.quantize_per_tensor(torch.zeros(16, 3), 0.1, 0, torch.qint8), "quantised"),
    ],
)
def test_a_tensor_that_is_not_what_it_claims_is_refused_and_never_copied(tmp_path, tensor, message):
    with_tensor(tmp_path, "mlp.0.weight", tensor)
    assert message in refusal(tmp_path)


def test_a_tensor_that_is_a_view_of_a_larger_one_is_let_in(tmp_path):
    with_tensor(tmp_path, "mlp.0.weight", torch.zeros(16, 6)[:, ::2])
    # Now only its sizes are wrong.
    assert "takes 3 numbers" in refusal(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, 1000, 3000])
def test_a_checkpoint_that_is_cut_off_is_told_before_anything_starts(tmp_path, size):
    path = write_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    assert "is no checkpoint" in refusal(tmp_path)


def test_a_checkpoint_that_unfolds_is_refused_before_it_is_loaded(tmp_path):
    path = write_checkpoint(tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part if "/data/" not in name else bytes(1 << 22))
    assert path.stat().st_size < 1 << 20
    assert "is compressed" in refusal(tmp_path)


def test_a_checkpoint_of_other_sizes_is_told_for_each_job_before_anything_starts(tmp_path):
    write_checkpoint(tmp_path, num_inputs=26, num_actions=5)
    names, options = ("reach", "cartpole"), {"checkpoint_path": str(tmp_path)}
    reach, cartpole = problems_of(*(job(name, "rsl_rl", 1, name=name, options=options) for name in names))
    assert (reach.job, cartpole.job) == names
    assert {reach.key, cartpole.key} == {"policy_config_dict.checkpoint_path"}
    assert "the network gives 5 actions, the environment takes 8" in reach.message
    assert "the network takes 26 numbers, this environment gives" in cartpole.message


def test_a_checkpoint_of_other_sizes_is_told_where_there_are_cameras_and_none_looks(tmp_path, monkeypatch):
    def looked(*_: object) -> None:
        raise AssertionError("cameras take seconds to make ready")

    monkeypatch.setattr(mujoco_warp, "create_render_context", looked)
    write_checkpoint(tmp_path, num_inputs=26, num_actions=5)
    message = refusal(tmp_path, environment="reach", enable_cameras=True)
    assert "the network gives 5 actions, the environment takes 8" in message


def write_recording(path: Path, num_actions: int) -> Path:
    actions = np.zeros((30, num_actions), np.float32)
    write_episode(path, RecordedEpisode(episode_index=0, arrays={"actions": actions}, attributes={}, env_args={}))
    return path


def test_a_recording_of_another_robot_is_told_before_anything_starts(tmp_path):
    write_recording(tmp_path / "e000000.h5", 5)
    message = refusal(tmp_path, "replay")
    assert re.search(r"have shape \(30, 5\); the environment takes .* = \(1 or more, 8\)", message)


@pytest.mark.parametrize("size", [0, 1, 100, 600])
def test_a_damaged_recording_is_told_before_anything_starts(tmp_path, size):
    path = write_recording(tmp_path / "e000000.h5", 8)
    path.write_bytes(path.read_bytes()[:size])
    assert "e000000.h5" in refusal(tmp_path, "replay")
