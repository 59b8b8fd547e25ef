"""A training is over when it says so, whatever its trainer calls the last checkpoint."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import find_checkpoints, last_checkpoint
from tests.evaluation.watching.trainings import save
from tests.models.trainings import trained

TAGGED = "class_name: !!python/name:rsl_rl.runners.OnPolicyRunner ''\n"


def settings(training: Path, max_iterations: int, save_interval: int = 50, *, is_ours: bool = False) -> None:
    (training / "params").mkdir(exist_ok=True)
    text = f"{TAGGED}max_iterations: {max_iterations}\nsave_interval: {save_interval}\n"
    (training / "params" / "agent.yaml").write_text(text)
    if is_ours:
        (training / "params" / "train.yaml").write_text("agent: {}\n")


def last_step(training: Path, until: int | None = None) -> int | None:
    last = last_checkpoint(find_checkpoints(training), until)
    return None if last is None else last.step


@pytest.mark.parametrize(
    ("steps", "max_iterations", "last"),
    [
        ((0, 50, 950), 1000, None),
        ((0, 50, 950, 999), 1000, 999),
        ((0, 50, 999), 2000, 999),
        ((0, 50, 100), 101, 100),
        ((0, 50), 101, None),
        ((500, 550, 1000, 1499), 1000, 1499),
        ((500, 550, 1000), 1000, None),
    ],
    ids=["at work", "over", "cut short", "over at a multiple", "nearly", "gone on from another", "going on"],
)
def test_rsl_rl_ends_with_the_one_checkpoint_that_comes_between_two_others(tmp_path, steps, max_iterations, last):
    save(tmp_path / "go1", *steps)
    settings(tmp_path / "go1", max_iterations)
    assert last_step(tmp_path / "go1") == last


@pytest.mark.parametrize(
    ("steps", "last"), [((0, 100, 200), None), ((0, 100, 250), 250), ((0, 100, 999), 999), ((999,), 999)], ids=str
)
def test_without_settings_only_the_step_that_is_waited_for_says_that_rsl_rl_has_counted_from_0(tmp_path, steps, last):
    save(tmp_path / "go1", *steps)
    assert last_step(tmp_path / "go1", steps[-1] + 1) == last
    assert last_step(tmp_path / "go1", 5000) is None
    assert last_step(tmp_path / "go1") is None


def test_a_training_of_this_package_ends_with_the_number_of_its_iterations(tmp_path):
    training = tmp_path / "go1"
    save(training, 0, 50, 99)
    settings(training, 100, is_ours=True)
    assert last_step(training, 100) is None
    save(training, 100)
    assert last_step(training) == 100
    settings(training, 200, is_ours=True)
    assert last_step(training) is None, "it goes on in its directory"


@pytest.mark.parametrize(
    "text", ["{max_iterations: 100, save_interval: 50}", '"max_iterations": 1_00\n"save_interval" : +50\n']
)
def test_settings_may_be_any_yaml(tmp_path, text):
    save(tmp_path / "go1", 0, 50, 99)
    settings(tmp_path / "go1", 100)
    (tmp_path / "go1" / "params" / "agent.yaml").write_text(text)
    assert last_step(tmp_path / "go1") == 99


@pytest.mark.parametrize(
    "text",
    ["", "max_iterations: [", "max_iterations: many", "- 3", "max_iterations: 0", f"max_iterations: {'9' * 5000}"],
    ids=["empty", "torn", "words", "a list", "none", "too many digits"],
)
def test_settings_that_cannot_be_read_say_nothing(tmp_path, text):
    save(tmp_path / "go1", 0, 50, 99)
    settings(tmp_path / "go1", 100)
    (tmp_path / "go1" / "params" / "agent.yaml").write_text(text)
    assert last_step(tmp_path / "go1") is None


@pytest.mark.parametrize(
    ("checkpoint", "file", "key"),
    [
        ("checkpoints/{step:06}/pretrained_model", "train_config.json", "steps"),
        ("checkpoint-{step}", "trainer_state.json", "max_steps"),
    ],
    ids=["LeRobot", "transformers"],
)
def test_others_write_into_each_checkpoint_how_many_steps_there_are(tmp_path, checkpoint, file, key):
    for step in (200, 450):
        directory = tmp_path / checkpoint.format(step=step)
        directory.mkdir(parents=True)
        assert last_step(tmp_path) is None
        (directory / file).write_text(json.dumps({key: 450}))
    assert last_step(tmp_path) == 450


def test_a_directory_without_checkpoints_is_not_over():
    assert last_checkpoint([], 100) is None


def test_rsl_rl_itself_calls_the_last_of_four_iterations_the_third(tmp_path):
    training = trained(tmp_path / "noise", agent={"max_iterations": 4, "save_interval": 2}, iterations=4).directory
    assert [each.step for each in find_checkpoints(training)] == [0, 2, 3]
    assert last_step(training) == 3
