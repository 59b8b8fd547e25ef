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


def test_a_name_of_the_hub_is_told_how_to_be_fetched():
    assert "hf download NAME --local-dir DIR" in refused("lerobot/act_aloha_sim")


def test_a_directory_without_a_policy_is_refused(tmp_path):
    assert "holds no policy of LeRobot: there is no config.json" in refused(tmp_path)


def test_a_policy_without_processors_is_told_what_adds_them(tmp_path):
    directory = saved(tmp_path)
    (directory / "policy_postprocessor.json").unlink()
    message = refused(directory)
    assert "lacks policy_postprocessor.json" in message
    assert "lerobot.processor.migrate_policy_normalization" in message


def test_a_policy_without_weights_is_refused(tmp_path):
    directory = saved(tmp_path)
    (directory / "model.safetensors").unlink()
    assert refused(directory).endswith("lacks model.safetensors")


def test_features_are_read_with_pictures_as_they_are_shown_here(tmp_path):
    features = read_features(saved(tmp_path, "diffusion", n_obs_steps=2))
    assert features.pictures == {PICTURE: (6, 8, 3)}
    assert features.states == {STATE: 6}
    assert (features.kind, features.action_dim, features.num_observations) == ("diffusion", 5, 2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"input_features": {STATE: {"type": "STATE"}}}, "KeyError: 'shape'"),
        ({"output_features": {"action": {"type": "ACTION", "shape": [5, 2]}}}, "too many values"),
        ({"input_features": None}, "AttributeError"),
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path, setting, message):
    directory = saved(tmp_path, **setting)
    with pytest.raises(ConfigError) as error:
        read_features(directory)
    assert message in str(error.value)


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


def test_a_configuration_that_is_no_json_is_refused(tmp_path):
    (saved(tmp_path) / "config.json").write_text("type: act")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_features(tmp_path)


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
def test_names_of_another_kind_say_nothing(tmp_path, names):
    root = dataset(tmp_path / "dataset", names, fps=20)
    assert read_training_data(saved(tmp_path / "policy"), str(root)).terms == {}


def test_a_dataset_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset: .*no dataset of LeRobot"):
        read_training_data(saved(tmp_path / "policy"), str(tmp_path))


STATES = {f"{STATE}.mean": [0.1] * 6, f"{STATE}.std": [0.7] * 6}
ACTIONS = {"action.min": [-1.0] * 5, "action.max": [1.0] * 5}
ALL = {**STATES, **ACTIONS}


def of_another_dataset(statistics):
    """Return statistics that a training kept by its dataset and not by the feature."""
    return {f"so100.{name}": values for name, values in statistics.items()}


def test_statistics_of_what_is_to_be_normalised_raise_no_doubt(tmp_path):
    assert check_statistics(saved(tmp_path / "none")) == ()
    assert check_statistics(normalised(saved(tmp_path / "all"), ALL, ALL)) == ()
    # What is shown is normalised by the one file, what is done by the other.
    assert check_statistics(normalised(saved(tmp_path / "own"), STATES, ACTIONS)) == ()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            of_another_dataset(ALL),
            ALL,
            [f"'.*policy_preprocessor.json' is to normalise {STATE}, .* so100.action, so100"],
        ),
        (ALL, of_another_dataset(ALL), ["'.*policy_postprocessor.json' is to normalise action, and has statistics of"]),
        ({f"{STATE}.mean": [0.1] * 6}, ALL, ["nothing would be normalised"]),
        (STATES | {f"{STATE}.std": [float("nan")] * 6}, ALL, [f"no finite numbers: {STATE}.std"]),
        (ALL, {**ACTIONS, "action.max": [float("inf")] * 5}, ["policy_postprocessor.json' .*: action.max"]),
    ],
    ids=["others before", "others after", "half", "nan", "inf"],
)
def test_statistics_that_do_not_cover_what_is_to_be_normalised_are_refused(tmp_path, before, after, told):
    directory = normalised(saved(tmp_path), before, after)
    with pytest.raises(ConfigError) as refused:
        check_statistics(directory)
    assert len(refused.value.problems) == len(told)
    for problem, words in zip(refused.value.problems, told, strict=True):
        assert problem.key == "pretrained"
        assert re.search(words, problem.message)


def test_features_without_any_statistics_are_told(tmp_path):
    before, after = check_statistics(normalised(saved(tmp_path), None, {}))
    assert before.endswith(f"is to normalise {STATE}, and has no statistics for that: it stays as it is")
    assert "is to normalise action" in after


def test_statistics_that_cannot_be_read_are_told(tmp_path):
    directory = normalised(saved(tmp_path), ALL, ALL)
    next(directory.glob("policy_post*.safetensors")).write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match="the statistics of a processor, is damaged"):
        check_statistics(directory)
