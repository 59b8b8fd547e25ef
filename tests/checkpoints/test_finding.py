"""Checkpoints of a directory, in order of training."""

import json
import struct
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import best_of_training, find_checkpoints, wrong_with_safetensors
from tests.checkpoints.written import rsl_rl, trainer, write


def made(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory


FOUND_BY_NAME = {
    "rsl_rl": (
        ["model_0.pt", "model_50.pt", "model_100.pt"],
        ["model_best.pt", "params/agent.yaml"],
    ),
    "LeRobot's training": (
        ["checkpoints/000200/pretrained_model", "checkpoints/001000/pretrained_model"],
        ["checkpoints/last/pretrained_model", "train_config.json"],
    ),
    "LeRobot's checkpoints": (
        ["000200/pretrained_model", "001000/pretrained_model"],
        ["last/pretrained_model"],
    ),
    "transformers' Trainer": (
        ["checkpoint-9", "checkpoint-10"],
        [".checkpoint-11.tmp", "checkpoint-last"],
    ),
    "none": ([], ["policy.onnx", "events.out"]),
}


@pytest.mark.parametrize(("found", "others"), FOUND_BY_NAME.values(), ids=FOUND_BY_NAME)
def test_checkpoints_are_found_by_the_names_that_trainings_give_them(tmp_path, found, others):
    checkpoints = find_checkpoints(made(tmp_path, *found, *others))
    assert [each.path.relative_to(tmp_path).as_posix() for each in checkpoints] == found
    assert [each.step for each in checkpoints] == sorted(each.step for each in checkpoints)


def test_a_pattern_finds_others_whose_last_number_is_the_step(tmp_path):
    made(tmp_path, "run2/policy_v3_500.onnx", "run2/policy_v3_1000.onnx", "run2/final.onnx")
    found = find_checkpoints(tmp_path, "run2/*.onnx")
    assert [(each.step, each.path.name) for each in found] == [
        (500, "policy_v3_500.onnx"),
        (1000, "policy_v3_1000.onnx"),
    ]


def test_a_number_that_every_checkpoint_has_in_its_path_is_no_step(tmp_path):
    made(tmp_path, "checkpoint-100/v2/policy.onnx", "checkpoint-200/v2/policy.onnx")
    assert [each.step for each in find_checkpoints(tmp_path, "checkpoint-*/v2/policy.onnx")] == [100, 200]
    assert [each.step for each in find_checkpoints(tmp_path, "**/policy.onnx")] == [2]


ARCHIVE, OTHER = (rsl_rl(seed)["model_100.pt"] for seed in (0, 1))


def step_of_best(directory: Path, score: str | None, **numbered: bytes) -> int | None:
    write(directory, {"model_best.pt": ARCHIVE, **{f"{name}.pt": content for name, content in numbered.items()}})
    if score is not None:
        (directory / "model_best.json").write_text(score)
    best = best_of_training(directory)
    assert best is not None
    assert best[0] == directory / "model_best.pt"
    return best[1]


@pytest.mark.parametrize("numbered", [{}, {"model_50": ARCHIVE}], ids=["removed since", "still there"])
def test_the_step_stands_beside_the_copy_of_the_best(tmp_path, numbered):
    assert step_of_best(tmp_path, '{"iterations": 50, "success_rate": 0.9}', **numbered) == 50


@pytest.mark.parametrize("score", [None, "", "[50]", '{"iterations": "50"}', '{"iterations": true}', "{}"])
def test_a_step_that_nobody_says_is_not_made_up(tmp_path, score):
    assert step_of_best(tmp_path, score, model_50=ARCHIVE) is None


def test_a_score_of_another_checkpoint_says_no_step(tmp_path):
    assert step_of_best(tmp_path, '{"iterations": 50}', model_50=OTHER) is None


@pytest.mark.parametrize("named", ["/elsewhere/out/checkpoint-100", "out\\checkpoint-100", "checkpoint-100/"])
def test_transformers_names_the_best_in_the_state_of_its_newest(tmp_path, named):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-200").mkdir()
    (tmp_path / "checkpoint-200" / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": named}))
    assert best_of_training(tmp_path) == (tmp_path / "checkpoint-100", 100)


@pytest.mark.parametrize(
    "state", ["{}", '{"best_model_checkpoint": null}', '{"best_model_checkpoint": "../model"}', "{"]
)
def test_a_training_that_names_none_has_none(tmp_path, state):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(state)
    assert best_of_training(tmp_path) is None
    assert best_of_training(tmp_path / "nowhere") is None


# Files of weights that are cut off or lie about their sizes are named, and nothing of them is loaded.


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


def test_a_whole_safetensors_file_is_let_in(tmp_path):
    assert wrong_with_safetensors(safetensors(tmp_path, {"__metadata__": {"format": "pt"}, **WHOLE})) is None
    assert wrong_with_safetensors(safetensors(tmp_path, {}, 0)) is None


@pytest.mark.parametrize(
    ("header", "num_bytes"),
    [
        (WHOLE, 31),
        (WHOLE, 33),
        (with_entry(shape=[2, 4]), 32),
        (with_entry(data_offsets=[0, 20], shape=[5]), 32),
        (with_entry(shape=[-2, -3]), 32),
        (with_entry(shape=[2.0, 3]), 32),
        (with_entry(dtype=...), 32),
        (with_entry(data_offsets=[0]), 32),
        ({"a": 3}, 0),
        ([], 0),
        (b"{", 0),
        (b"[" * 100_000, 0),
    ],
)
def test_a_safetensors_file_whose_header_lies_is_damaged(tmp_path, header, num_bytes):
    assert "is damaged" in str(wrong_with_safetensors(safetensors(tmp_path, header, num_bytes)))


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_safetensors_file_shorter_than_its_header_is_damaged(tmp_path, length):
    assert "is damaged" in str(wrong_with_safetensors(safetensors(tmp_path, WHOLE, length=length)))
    (tmp_path / "model.safetensors").write_bytes(b"\1\0\0")
    assert "is damaged" in str(wrong_with_safetensors(tmp_path / "model.safetensors"))


def test_a_safetensors_file_with_a_header_of_more_than_a_hundred_million_bytes_is_not_read(tmp_path):
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", 100_000_001))
        stream.truncate(8 + 100_000_001)
    assert "is damaged: " in str(wrong_with_safetensors(file))
