import json
import re
from pathlib import Path

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.lerobot_network import (
    check_statistics,
    policy_directory,
    read_features,
    read_training_data,
)
from tests.policy.lerobot.policies import PICTURE, STATE, dataset, normalised, saved


def refused(pretrained: Path | str) -> str:
    with pytest.raises(ConfigError) as error:
        policy_directory(str(pretrained))
    (problem,) = error.value.problems
    assert problem.key == "pretrained"
    return problem.message


def test_a_training_stands_for_its_last_checkpoint(tmp_path):
    last = saved(tmp_path / "training" / "checkpoints" / "last" / "pretrained_model")
    assert policy_directory(str(tmp_path / "training")) == last
    assert policy_directory(str(last.parent)) == last
    assert policy_directory(str(last)) == last


@pytest.mark.parametrize(
    ("name", "lacks", "told"),
    [
        ("lerobot/act_aloha_sim", "", "hf download NAME --local-dir DIR"),
        ("empty", "", "no config.json"),
        ("policy", "policy_postprocessor.json", "lerobot.processor.migrate_policy_normalization"),
        ("policy", "model.safetensors", "lacks model.safetensors"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_way_out(tmp_path, monkeypatch, name, lacks, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    directory = saved(tmp_path / "policy")
    if lacks:
        (directory / lacks).unlink()
    message = refused(name)
    assert told in message
    assert lacks in message


def test_features_are_read_with_pictures_as_they_are_shown_here(tmp_path):
    features = read_features(saved(tmp_path, "diffusion", n_obs_steps=2))
    assert features.pictures == {PICTURE: (6, 8, 3)}
    assert features.states == {STATE: 6}
    assert (features.kind, features.action_dim, features.num_observations) == ("diffusion", 5, 2)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"input_features": {STATE: {"type": "STATE"}}}, "KeyError: 'shape'"),
        ({"output_features": {"action": {"type": "ACTION", "shape": [5, 2]}}}, "too many values"),
        ({"input_features": None}, "AttributeError"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path, setting, told):
    directory = saved(tmp_path, **(setting or {}))
    if setting is None:
        (directory / "config.json").write_text("type: act")
    with pytest.raises(ConfigError, match=told):
        read_features(directory)


@pytest.mark.parametrize(
    ("setting", "does"),
    [
        ({"type": "tdmpc", "use_mpc": True}, True),
        ({"type": "tdmpc", "use_mpc": False}, False),
        ({"temporal_ensemble_coeff": 0.0}, True),
        ({"temporal_ensemble_coeff": None}, False),
        ({}, False),
    ],
)
def test_a_configuration_says_whether_a_policy_remembers(tmp_path, setting, does):
    assert read_features(saved(tmp_path, **setting)).remembers is does


def test_a_dataset_tells_which_observations_form_a_state_and_its_rate(tmp_path):
    names = ["robot_joint_pos_0", "robot_joint_pos_1", "grip_0"]
    root = dataset(tmp_path / "dataset", names, fps=20)
    directory = saved(tmp_path / "policy")
    assert read_training_data(directory, None).fps is None
    (directory / "train_config.json").write_text(json.dumps({"dataset": {"root": str(root)}}))
    for data in (read_training_data(directory, None), read_training_data(directory, str(root))):
        assert data.terms == {STATE: ("robot_joint_pos", "grip")}
        assert data.fps == 20


@pytest.mark.parametrize("names", [["x", "y"], ["pos_1", "pos_0"], ["a_0", "b_0", "a_1"]])
def test_names_of_another_kind_say_nothing_and_a_dataset_that_is_named_must_be_there(tmp_path, names):
    root = dataset(tmp_path / "dataset", names, fps=20)
    directory = saved(tmp_path / "policy")
    assert read_training_data(directory, str(root)).terms == {}
    with pytest.raises(ConfigError, match="dataset: "):
        read_training_data(directory, str(tmp_path))


STATES = {f"{STATE}.mean": [0.1] * 6, f"{STATE}.std": [0.7] * 6}
ACTIONS = {"action.min": [-1.0] * 5, "action.max": [1.0] * 5}
ALL = {**STATES, **ACTIONS}


OTHERS = {f"so100.{name}": values for name, values in ALL.items()}
"""Statistics that a training kept by its dataset and not by the feature."""


def test_statistics_of_what_is_to_be_normalised_raise_no_doubt(tmp_path):
    assert check_statistics(saved(tmp_path / "none")) == ()
    assert check_statistics(normalised(saved(tmp_path / "all"), ALL, ALL)) == ()
    # What is shown is normalised by the one file, what is done by the other.
    assert check_statistics(normalised(saved(tmp_path / "own"), STATES, ACTIONS)) == ()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (OTHERS, ALL, [f"policy_preprocessor.json' .*{STATE}, .*so100.action, so100"]),
        (ALL, OTHERS, ["policy_postprocessor.json' .*action, "]),
        ({f"{STATE}.mean": [0.1] * 6}, ALL, ["nothing would be normalised"]),
        (STATES | {f"{STATE}.std": [float("nan")] * 6}, ALL, [f"finite numbers: {STATE}.std"]),
        (ALL, {**ACTIONS, "action.max": [float("inf")] * 5}, ["policy_postprocessor.json' .*: action.max"]),
        (ALL, None, ["damaged"]),
    ],
    ids=["others before", "others after", "half", "nan", "inf", "damaged"],
)
def test_statistics_that_do_not_cover_what_is_to_be_normalised_are_refused(tmp_path, before, after, told):
    directory = normalised(saved(tmp_path), before, after or ALL)
    if after is None:
        next(directory.glob("policy_post*.safetensors")).write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError) as refused:
        check_statistics(directory)
    for problem, words in zip(refused.value.problems, told, strict=True):
        assert re.search(words, f"{problem.file} {problem.message}")


def test_features_without_any_statistics_are_told(tmp_path):
    before, after = check_statistics(normalised(saved(tmp_path), None, {}))
    assert f"normalise {STATE}, " in before
    assert "normalise action" in after
