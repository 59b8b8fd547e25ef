from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import find_checkpoints


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


def test_of_two_names_of_one_step_the_same_one_is_always_taken(tmp_path):
    (checkpoint,) = find_checkpoints(made(tmp_path, "model_7.pt", "model_007.pt"))
    assert checkpoint.path.name == "model_007.pt"
