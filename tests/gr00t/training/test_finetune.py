"""The command as a user types it: what it leaves, how it goes on, and what it refuses."""

import csv
from pathlib import Path

import pytest

from isaaclab_arena_gr00t.training.finetune import main
from tests.gr00t.training.demonstrations import recording, write_config, write_recordings


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("finetune")
    write_recordings(path / "demos" / "lift", *map(recording, range(5)))
    write_config(path / "policy.yaml")
    return path


def typed(folder: Path, output: Path, *more: object) -> list[str]:
    paths = ["--dataset", folder / "demos", "--output_dir", output, "--policy_config_yaml_path", folder / "policy.yaml"]
    sizes = ["--batch_size", 2, "--noise_draws", 1, "--save_every", 2, "--log_every", 1, "--device", "cpu"]
    return [str(word) for word in (*paths, *sizes, *more)]


def weights(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def test_training_leaves_checkpoints_and_its_losses_and_goes_on_to_the_same_bits(folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(typed(folder, whole, "--max_steps", 4)) == 0
    assert {path.name for path in whole.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    with (whole / "progress.csv").open() as file:
        measures = [(row["step"], row["measure"]) for row in csv.DictReader(file)]
    assert ("1", "loss") in measures
    assert ("4", "validation_loss") in measures
    assert main(typed(folder, parts, "--max_steps", 4)) == 0
    # As if it had been killed after the first checkpoint.
    last = parts / "checkpoint-4"
    last.rename(tmp_path / "away")
    assert main(typed(folder, parts, "--max_steps", 4, "--resume")) == 0
    assert weights(last) == weights(whole / "checkpoint-4") != weights(whole / "checkpoint-2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch_size", "0"), "--batch_size: must be at least 1, got 0"),
        (("--validation_share", "1"), "--validation_share: must be at least 0 and less than 1"),
        (("--learning_rate", "0"), "--learning_rate: must be positive, got 0"),
        (("--dataset", "nowhere"), "nowhere"),
        (("--resume",), "holds no training.json to go on with"),
        (("--policy_config_yaml_path", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(folder, tmp_path, capsys, arguments, message):
    assert main([*typed(folder, tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_another_run_is_not_gone_on_with_and_not_written_over(folder, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(typed(folder, output, "--max_steps", 2)) == 0
    assert main(typed(folder, output, "--max_steps", 2)) == 2
    assert "is not empty; go on with --resume, or name a new folder" in capsys.readouterr().err
    assert main(typed(folder, output, "--max_steps", 2, "--seed", 1, "--resume")) == 2
    assert "seed: was 0 when the run began, now 1" in capsys.readouterr().err
