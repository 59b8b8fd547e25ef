import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.lerobot_network import (
    Features,
    LeRobotPolicyCfg,
    TrainingData,
    check_statistics,
    policy_directory,
    read_features,
    read_training_data,
)
from isaaclab_arena.policy.lerobot_policy import fitted
from tests.gr00t.fakes import LimbEnvironment
from tests.layouts import LAYOUTS
from tests.policy.lerobot.policies import STATE, dataset, normalised, saved


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
        (STATES | {f"{STATE}.std": [float("nan")] * 6}, ALL, [f"not finite: {STATE}.std"]),
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


def test_statistics_in_numbers_that_cannot_be_read_are_refused(tmp_path):
    directory = normalised(saved(tmp_path), ALL, ALL)
    header = json.dumps({"action.max": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    file = next(directory.glob("policy_post*.safetensors"))
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(ConfigError, match="type 'F4'"):
        check_statistics(directory)


FRONT, STATE = "observation.images.front", "observation.state"
LIMBS = {STATE: ("robot_joint_pos", "fingers")}
NOTHING = TrainingData(terms={}, fps=None)


def features(**case: Any) -> Features:
    """Inputs and outputs of a policy: by default one picture, and actions of the environment's size."""
    usual: dict[str, Any] = {"pictures": {FRONT: (6, 8, 3)}, "states": {}, "action_dim": 5}
    return Features(kind="act", num_observations=1, num_actions=1, remembers=False, **{**usual, **case})


def fit(takes: Features, data: TrainingData = NOTHING, cameras: tuple[str, ...] = ("front", "side"), **options: Any):
    config, environment = LeRobotPolicyCfg(pretrained="policy", **options), LimbEnvironment(1, cameras=cameras)
    return fitted(takes, data, config, environment).connections(config, data, environment)


def misfit(*args: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        fit(*args, **options)
    return str(error.value)


STATE_OF_6 = features(pictures={}, states={STATE: 6})
OTHER_ORDER = TrainingData(terms={STATE: ("fingers", "robot_joint_pos")}, fps=None)
ACTION = "; action -> action (wrist to knee)"


@pytest.mark.parametrize(
    ("takes", "options", "connections"),
    [
        # A picture is that of the camera of its name, or that the job names, or else of the only camera.
        (features(), {}, f"{FRONT} <- front{ACTION}"),
        (features(), {"images": {FRONT: "side"}}, f"{FRONT} <- side{ACTION}"),
        (
            features(pictures={"observation.image": (6, 8, 3)}),
            {"cameras": ("front",)},
            f"observation.image <- front{ACTION}",
        ),
        # A state is what the job names, or the dataset, or else the only observation of its size.
        (STATE_OF_6, {"data": OTHER_ORDER}, f"{STATE} <- fingers + robot_joint_pos{ACTION}"),
        (STATE_OF_6, {"data": OTHER_ORDER, "states": LIMBS}, f"{STATE} <- robot_joint_pos + fingers{ACTION}"),
        (features(pictures={}, states={STATE: 4}), {}, f"{STATE} <- robot_joint_pos{ACTION}"),
        (
            features(action_dim=8),
            {"action_columns": (7, 0, 1, 2, 3)},
            f"{FRONT} <- front; action[7, 0:4] -> action (wrist to knee)",
        ),
    ],
)
def test_one_line_says_what_a_policy_is_shown_and_which_of_its_numbers_are_played(takes, options, connections):
    assert str(fit(takes, **options)) == connections


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_policy_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    environment = LimbEnvironment(2)
    shown = {name: torch.from_numpy(np.stack([lies, lies])) for name in ("front", "side")}
    specs = {name: ArraySpec(shape=lies.shape, dtype=torch.uint8) for name in shown}
    environment.observation_spec = {**environment.observation_spec, "camera_obs": specs}
    inputs = fitted(features(), NOTHING, LeRobotPolicyCfg(pretrained="policy"), environment)
    seen = inputs.seen({"policy": {}, "camera_obs": shown}, [1])
    np.testing.assert_array_equal(seen[FRONT].numpy(), colours[None])


def test_what_the_dataset_of_the_training_says_otherwise_is_told():
    environment = LimbEnvironment(1)
    taken = environment.action_spec.names
    assert taken is not None
    data = dataclasses.replace(OTHER_ORDER, action_names=taken[::-1])
    order, action = fit(STATE_OF_6, data, states=LIMBS).doubts(environment)
    assert order.startswith(
        "its training's dataset builds observation.state from fingers + robot_joint_pos, the job from "
    )
    assert action.startswith(f"policy has its action in the order {', '.join(taken[::-1])}, the environment takes ")
    assert fit(STATE_OF_6, data, action_columns=(4, 3, 2, 1, 0)).doubts(environment) == []


@pytest.mark.parametrize(
    ("takes", "options", "message"),
    [
        ({"pictures": {"observation.images.fronts": (6, 8, 3)}}, {}, "'fronts'; did you mean 'front'?"),
        ({}, {"cameras": ()}, "no pictures"),
        ({"pictures": {"observation.image": (6, 8, 3)}}, {}, "images.observation.image: "),
        ({"states": {STATE: 6}}, {}, "states.observation.state: is missing"),
        ({}, {"data": TrainingData(terms={}, fps=50.0)}, "fps: 10"),
        ({"pictures": {FRONT: (48, 64, 3)}}, {}, "48 x 64 x 3, but camera 'front'"),
        ({"states": {STATE: 6}}, {"states": {STATE: ("robot_joint_poss",)}}, "did you mean 'robot_joint_pos'?"),
        ({"states": {STATE: 7}}, {"states": LIMBS}, "robot_joint_pos + fingers have 6"),
        ({}, {"images": {"front": "front"}}, "images.front: "),
        ({}, {"states": LIMBS}, "states.observation.state: "),
        ({"action_dim": 8}, {}, "8 numbers, the environment's 5"),
        ({}, {"action_columns": (0, 1, 2, 3, 5)}, "action_columns: must be 0 to 4"),
        ({}, {"fps": 5.0}, "makes 10"),
    ],
)
def test_what_does_not_fit_is_named_with_the_way_out(takes, options, message):
    assert message in misfit(features(**takes), **options)


def test_a_policy_for_another_rate_is_played_if_the_job_says_so():
    fit(features(), TrainingData(terms={}, fps=50.0), fps=10.0)
