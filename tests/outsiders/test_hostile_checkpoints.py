"""Checkpoints that are cut off, lie about their sizes or unfold: told before anything starts, and nothing is filled."""

import json
import struct
import zipfile
from pathlib import Path

import mujoco_warp
import numpy as np
import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.checkpoints.safetensors_files import MAX_HEADER_BYTES, wrong_with_safetensors
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.results import RecordedEpisode
from isaaclab_arena.storage.hdf5.episodes import write_episode
from isaaclab_arena_gr00t.checkpoints import checkpoint_problems
from tests.end_to_end.mistakes import mistaken
from tests.policy.checkpoints import write_checkpoint

WHOLE = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}


def safetensors(directory: Path, header: object, num_bytes: int = 32, *, length: int | None = None) -> Path:
    """Write a safetensors file with any header and so many bytes of weights."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = directory / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(num_bytes))
    return file


def with_entry(**changes: object) -> dict:
    return {**WHOLE, "a": {key: value for key, value in {**WHOLE["a"], **changes}.items() if value is not ...}}


def refusal(directory: Path) -> str:
    """Return what a job with that checkpoint is refused with before anything starts."""
    jobs = mistaken(policy_type="rsl_rl", policy_config_dict={"checkpoint_path": str(directory / "model_1.pt")})
    with pytest.raises(ConfigError) as caught:
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs, file="jobs.json")
    (problem,) = caught.value.problems
    assert problem.key == "policy_config_dict.checkpoint_path"
    return problem.message


def with_tensor(directory: Path, name: str, tensor: torch.Tensor) -> None:
    """Replace one tensor of a checkpoint that would be fine."""
    path = write_checkpoint(directory)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["actor_state_dict"][name] = tensor
    torch.save(checkpoint, path)


def test_a_whole_safetensors_file_is_let_in(tmp_path):
    assert wrong_with_safetensors(safetensors(tmp_path, {"__metadata__": {"format": "pt"}, **WHOLE})) is None
    assert wrong_with_safetensors(safetensors(tmp_path, {}, 0)) is None


@pytest.mark.parametrize(
    ("header", "num_bytes", "message"),
    [
        (WHOLE, 31, "it holds 31 bytes of weights, and its header says 32"),
        (WHOLE, 33, "it holds 33 bytes of weights, and its header says 32"),
        (with_entry(shape=[2, 4]), 32, "'a' has 24 bytes, and its shape [2, 4] of F32 has others"),
        (with_entry(shape=[2**40, 2**40]), 32, "'a' has 24 bytes"),
        (with_entry(data_offsets=[0, 20], shape=[5]), 32, "overlap, or there are gaps"),
        (with_entry(data_offsets=[8, 32]), 32, "overlap, or there are gaps"),
        (with_entry(shape=[-2, -3]), 32, "sizes that are no whole numbers"),
        (with_entry(shape=[2.0, 3]), 32, "sizes that are no whole numbers"),
        (with_entry(shape=[True, 6]), 32, "sizes that are no whole numbers"),
        (with_entry(dtype=...), 32, "does not say what 'a' is"),
        (with_entry(data_offsets=[0]), 32, "does not say what 'a' is"),
        ({"a": 3}, 0, "does not say what 'a' is"),
        ([], 0, "its header is no mapping"),
        (b"{", 0, "its header is no JSON"),
        (b"\xff\xfe", 0, "its header is no JSON"),
        (b"[" * 100_000, 0, "its header is no JSON"),
    ],
)
def test_a_safetensors_file_whose_header_lies_is_named(tmp_path, header, num_bytes, message):
    assert message in str(wrong_with_safetensors(safetensors(tmp_path, header, num_bytes)))


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_safetensors_file_shorter_than_its_header_is_damaged(tmp_path, length):
    message = wrong_with_safetensors(safetensors(tmp_path, WHOLE, length=length))
    assert f"its header alone would have {length}" in str(message)
    (tmp_path / "model.safetensors").write_bytes(b"\1\0\0")
    assert "is damaged: it has 3 bytes" in str(wrong_with_safetensors(tmp_path / "model.safetensors"))


def test_the_largest_header_of_a_safetensors_file_has_a_hundred_million_bytes(tmp_path):
    file = tmp_path / "model.safetensors"
    for length, message in ((100_000_001, "has a header of 100000001 bytes"), (100_000_000, "its header is no JSON")):
        with file.open("wb") as stream:
            stream.write(struct.pack("<Q", length))
            stream.truncate(8 + length)
        assert message in str(wrong_with_safetensors(file))
    assert MAX_HEADER_BYTES == 100_000_000


def test_a_model_with_a_damaged_or_a_missing_part_is_told_with_the_option(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    file = safetensors(tmp_path, WHOLE)
    assert checkpoint_problems(str(tmp_path)) == []
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    (problem,) = checkpoint_problems(str(tmp_path))
    assert "names model-2.safetensors, which is not there" in problem.message
    file.write_bytes(file.read_bytes()[:-1])
    (problem,) = checkpoint_problems(str(tmp_path))
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
    jobs = mistaken(policy_type="rsl_rl", policy_config_dict={"checkpoint_path": str(tmp_path / "model_1.pt")})
    # Now only its sizes are wrong.
    with pytest.raises(ConfigError, match="takes 3 numbers"):
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs)


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
    block = mistaken(policy_type="rsl_rl", policy_config_dict={"checkpoint_path": str(tmp_path)})["jobs"][0]
    jobs = [
        {**block, "name": "reach", "arena_env_args": {"environment": "reach"}},
        {**block, "name": "cartpole", "arena_env_args": {"environment": "cartpole"}},
    ]
    with pytest.raises(ConfigError) as caught:
        resolve_jobs(read_jobs({"jobs": jobs}, source="jobs.json").jobs, file="jobs.json")
    reach, cartpole = map(str, caught.value.problems)
    start = "jobs.json: job '{}': policy_config_dict.checkpoint_path: " + str(tmp_path / "model_1.pt")
    assert reach == f"{start.format('reach')}: the network gives 5 actions, the environment takes 8"
    assert cartpole.startswith(f"{start.format('cartpole')}: the network takes 26 numbers, this environment would show")


def test_a_checkpoint_of_other_sizes_is_told_where_there_are_cameras_and_none_looks(tmp_path, monkeypatch):
    def looked(*_: object) -> None:
        raise AssertionError("cameras take seconds to make ready")

    monkeypatch.setattr(mujoco_warp, "create_render_context", looked)
    write_checkpoint(tmp_path, num_inputs=26, num_actions=5)
    environment = {"environment": "reach", "enable_cameras": True}
    jobs = mistaken(
        policy_type="rsl_rl", policy_config_dict={"checkpoint_path": str(tmp_path)}, arena_env_args=environment
    )
    with pytest.raises(ConfigError, match="the network gives 5 actions, the environment takes 8"):
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs, file="jobs.json")


def test_a_recording_of_another_robot_is_told_before_anything_starts(tmp_path):
    actions = np.zeros((3, 5), np.float32)
    episode = RecordedEpisode(episode_index=0, arrays={"actions": actions}, attributes={}, env_args={})
    write_episode(tmp_path / "e000000.h5", episode)
    jobs = mistaken(policy_type="replay", policy_config_dict={"replay_file_path": str(tmp_path)})
    with pytest.raises(
        ConfigError, match=r"have shape \(3, 5\); the environment takes .* = \(1 or more, 8\)"
    ) as caught:
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs, file="jobs.json")
    assert caught.value.problems[0].key == "policy_config_dict.replay_file_path"


@pytest.mark.parametrize("size", [0, 1, 100, 600])
def test_a_damaged_recording_is_told_before_anything_starts(tmp_path, size):
    episode = RecordedEpisode(
        episode_index=0, arrays={"actions": np.zeros((30, 8), np.float32)}, attributes={}, env_args={}
    )
    write_episode(tmp_path / "e000000.h5", episode)
    (tmp_path / "e000000.h5").write_bytes((tmp_path / "e000000.h5").read_bytes()[:size])
    jobs = mistaken(policy_type="replay", policy_config_dict={"replay_file_path": str(tmp_path)})
    with pytest.raises(ConfigError) as caught:
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs, file="jobs.json")
    (problem,) = caught.value.problems
    assert problem.key == "policy_config_dict.replay_file_path"
    assert "e000000.h5" in problem.message
