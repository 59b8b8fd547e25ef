"""Where a model's inputs and outputs are in an environment, and what is said where they are not."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import ArraySpec, resized_with_padding
from isaaclab_arena_gr00t.config import (
    Gr00tClosedloopPolicyConfig,
    JointFiles,
    ModelInterface,
    PolicyJoints,
    model_interface,
    read_joint_order,
    read_policy_joints,
)
from isaaclab_arena_gr00t.observations import ModelInputs, Wiring, wired
from tests.gr00t.fakes import (
    ACTION,
    DIMENSIONS,
    FINGERS,
    GROUPS,
    HORIZON,
    JOINTS,
    MODALITIES,
    FakeModality,
    LimbEnvironment,
    write_yaml,
)
from tests.layouts import LAYOUTS

MODEL = model_interface(MODALITIES, DIMENSIONS)
CONFIG = Gr00tClosedloopPolicyConfig(
    action_horizon=HORIZON,
    action_chunk_length=2,
    pov_cam_name_sim={"ego": "front", "aside": "side"},
    state_names_sim=("robot_joint_pos", "fingers"),
)


def files(groups: Any = None, **orders: Any) -> JointFiles:
    chosen = groups or GROUPS
    tuples = {kind: {name: tuple(joints) for name, joints in chosen[kind].items()} for kind in ("state", "action")}
    return JointFiles(policy=PolicyJoints(**tuples), **orders)


def wire(
    environment: LimbEnvironment | None = None,
    model: ModelInterface = MODEL,
    joint_files: JointFiles | None = None,
    **changes: Any,
) -> Wiring:
    config = dataclasses.replace(CONFIG, **changes)
    return wired(environment or LimbEnvironment(1), model, config, joint_files or files(), file="p.yaml")


def refusals(*arguments: Any, **changes: Any) -> list[tuple[str | None, str]]:
    with pytest.raises(ConfigError) as refused:
        wire(*arguments, **changes)
    assert {problem.file for problem in refused.value.problems} == {"p.yaml"}
    return [(problem.key, problem.message) for problem in refused.value.problems]


def groups(kind: str, **changes: list[str]) -> JointFiles:
    return files({**GROUPS, kind: {**GROUPS[kind], **changes}})


def test_cameras_in_a_list_go_by_order_unless_they_have_the_names_of_the_video_keys():
    assert wire(pov_cam_name_sim=("side", "front")).cameras == {"ego": "side", "aside": "front"}
    named = dataclasses.replace(MODEL, video_keys=("side", "front"))
    assert wire(model=named, pov_cam_name_sim=("front", "side")).cameras == {"side": "side", "front": "front"}
    alone = dataclasses.replace(MODEL, video_keys=("ego",))
    assert wire(model=alone, pov_cam_name_sim="side").cameras == {"ego": "side"}


def test_one_line_says_which_camera_and_which_joints_go_where():
    environment = LimbEnvironment(1)
    connections = wire(environment).connections(environment, source="p.yaml")
    assert connections.pictures == {"ego": "front", "aside": "side"}
    assert str(connections) == (
        "ego <- front; aside <- side; arm <- robot_joint_pos[3, 2] (wrist to elbow); leg <- robot_joint_pos[1, 0] "
        "(knee to hip); hand <- fingers[1, 0] (right_finger to left_finger); leg -> action[1, 4] (hip to knee); "
        "arm -> action[3, 0] (elbow to wrist); hand -> action[2] (grip)"
    )


def test_cameras_in_an_order_that_their_names_contradict_are_doubted():
    environment = LimbEnvironment(1, cameras=("ego_cam_rgb", "wrist_cam_rgb"))
    model = dataclasses.replace(MODEL, video_keys=("ego_view", "wrist_view"))
    right = wire(environment, model, pov_cam_name_sim=("ego_cam_rgb", "wrist_cam_rgb"))
    swapped = wire(environment, model, pov_cam_name_sim=("wrist_cam_rgb", "ego_cam_rgb"))
    assert right.connections(environment, source="p.yaml").doubts(environment) == []
    (doubt,) = swapped.connections(environment, source="p.yaml").doubts(environment)
    assert "'ego_view' from camera 'wrist_cam_rgb' and 'wrist_view' from 'ego_cam_rgb'" in doubt


CAMERAS, JOINT_FILE = "pov_cam_name_sim", "policy_joints_config_path"
BLIND = {"environment": LimbEnvironment(1, cameras=())}
ANOTHER_SIZE = dataclasses.replace(MODEL, dimensions={"state": {"arm": 7}, "action": {"hand": 2}})
# What is changed, and the key and a telling part of each problem.
MISFITS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({CAMERAS: ("front",)}, [(CAMERAS, "names 1 cameras")]),
    ({CAMERAS: {"ego": "front"}}, [(f"{CAMERAS}.aside", "is missing")]),
    ({CAMERAS: {"ego": "front", "aside": "side", "egg": "front"}}, [(f"{CAMERAS}.egg", "'ego'?")]),
    ({CAMERAS: ("front", "sid")}, [(CAMERAS, "'side'?")]),
    (BLIND, [(CAMERAS, "enable_cameras: true"), (CAMERAS, "")]),
    ({"original_image_size": (480, 640, 3)}, [("original_image_size", "[6, 8, 3]"), ("original_image_size", "")]),
    ({"joint_files": groups("state", arm=["wrist", "elbows"])}, [(JOINT_FILE, "'elbow'?")]),
    (
        {"joint_files": groups("state", leg=["toe"], hand=["thumb", "left_finger"])},
        [(JOINT_FILE, "'toe'"), (JOINT_FILE, "'thumb'")],
    ),
    ({"state_names_sim": ("robot_joint_position", "fingers")}, [("state_names_sim", "'robot_joint_pos'?")]),
    ({"model": dataclasses.replace(MODEL, state_keys=("armm",))}, [(JOINT_FILE, "'armm'")]),
    ({"joint_files": groups("action", hand=["grip", "knee"])}, [(JOINT_FILE, "2 of the model's actions")]),
    ({"joint_files": groups("action", arm=["elbow"])}, [(JOINT_FILE, "for 'wrist'")]),
    ({"joint_files": groups("action", arm=["elbow", "nose"])}, [(JOINT_FILE, "'nose'")]),
    (
        {"joint_files": JointFiles(), "model": dataclasses.replace(MODEL, state_keys=("fingers",))},
        [(JOINT_FILE, f"'{group}'") for group in MODEL.action_keys],
    ),
    ({"model": ANOTHER_SIZE}, [(JOINT_FILE, "has 7 numbers"), (JOINT_FILE, "has 2 numbers")]),
    ({"action_horizon": HORIZON + 1}, [("action_horizon", "predicts 6 steps")]),
]


@pytest.mark.parametrize(("changes", "expected"), MISFITS)
def test_what_does_not_match_is_refused_by_its_key(changes, expected):
    found = refusals(**changes)
    assert [key for key, _ in found] == [key for key, _ in expected]
    assert all(part in message for (_, message), (_, part) in zip(found, expected, strict=True)), found


def test_a_camera_without_colours_is_refused():
    environment = LimbEnvironment(1)
    environment.observation_spec = {
        **environment.observation_spec,
        "camera_obs": {
            "front": ArraySpec(shape=(4, 6, 8), dtype=torch.uint8),
            "side": ArraySpec(shape=(6, 8, 3), dtype=torch.float32),
        },
    }
    (_, stacked), (_, deep) = refusals(environment)
    assert "'front' has shape (4, 6, 8)" in stacked
    assert "'side' is not a colour picture" in deep
    assert wire(original_image_size=(6, 8, 3))


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_model_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    environment = LimbEnvironment(1)
    environment.observation_spec = {
        **environment.observation_spec,
        "camera_obs": {name: ArraySpec(shape=lies.shape, dtype=torch.uint8) for name in ("front", "side")},
    }
    wiring = wire(environment, original_image_size=(6, 8, 3), target_image_size=(6, 8, 3))
    shown: dict[str, Any] = {name: torch.from_numpy(np.stack([lies, lies])) for name in ("front", "side")}
    specs: Any = environment.observation_spec["policy"]
    joints = {name: torch.zeros(2, *specs[name].shape) for name in wiring.state_terms}
    observation = {"camera_obs": shown, "policy": joints}
    found = ModelInputs(wiring, num_envs=2).of(observation, [1], ["go"], as_tensors=True)["video"]
    assert [values.tolist() for values in found.values()] == [[[colours.tolist()]]] * 2


def test_a_group_that_no_file_knows_is_the_observation_of_that_name_and_the_only_action_the_whole_of_it():
    model = dataclasses.replace(MODEL, state_keys=("nameless", "fingers"), action_keys=("everything",), dimensions=None)
    wiring = wire(model=model, joint_files=JointFiles(state_order=JOINTS))
    assert wiring.state_terms == ("nameless", "fingers")
    assert wiring.state == {"nameless": (0, 1, 2), "fingers": (3, 4)}
    assert wiring.action == {"everything": (0, 1, 2, 3, 4)}
    mixed = wire(model=dataclasses.replace(MODEL, state_keys=("arm", "nameless"), dimensions=None))
    assert mixed.state_terms == ("robot_joint_pos", "fingers", "nameless")
    assert mixed.state == {"arm": (3, 2), "nameless": (6, 7, 8)}
    assert wire(model=dataclasses.replace(MODEL, state_keys=(), dimensions=None)).state_terms == ()


def test_an_order_of_joints_must_agree_with_the_environments_own_names():
    assert wire(joint_files=files(state_order=JOINTS + FINGERS, action_order=ACTION)) == wire()
    swapped = ("knee", "hip", *JOINTS[2:], *FINGERS)
    found = refusals(joint_files=files(state_order=swapped, action_order=ACTION[:4]))
    assert [key for key, _ in found] == [*["state_joints_config_path"] * 2, "action_joints_config_path"]
    assert "joint 1 is 'hip'" in found[1][1]


def test_joints_without_names_get_them_from_the_order_or_are_refused():
    environment = LimbEnvironment(1)
    environment.action_spec = ArraySpec(shape=(5,))
    assert wire(environment, joint_files=files(action_order=ACTION)).action == wire().action
    assert refusals(environment)[0][0] == "action_joints_config_path"
    environment.action_spec = ArraySpec(shape=(5,), names=("hip", "knee", "hip", "elbow", "wrist"))
    assert any("'hip' stands at positions 0 and 2" in message for _, message in refusals(environment))


@pytest.mark.parametrize(
    ("name", "steps", "keys", "says"),
    [
        ("video", [0, 1], ["ego"], r"\[0, 1\]"),
        ("video", [-257, 0], ["ego"], r"\[-257, 0\]"),
        ("video", [0] * 258, ["ego"], r"\[0, 0"),
        ("state", [], ["arm"], r"\[\]"),
        ("language", [0], [], "no instruction"),
        ("action", [0], [], "no actions"),
    ],
)
def test_a_model_that_wants_what_is_not_given_is_refused(name, steps, keys, says):
    with pytest.raises(ConfigError, match=says):
        model_interface({**MODALITIES, name: FakeModality(delta_indices=steps, modality_keys=keys)}, None)


# Joints and images, as a GR00T model names them.


def test_one_list_of_groups_serves_state_and_action_and_each_may_have_its_own(tmp_path):
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", {"arm": ["b", "a"], "hand": ["c"]}))
    assert joints.state == joints.action == {"arm": ("b", "a"), "hand": ("c",)}
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", GROUPS))
    assert (joints.state["hand"], joints.action["hand"]) == (("right_finger", "left_finger"), ("grip",))


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ([], None),
        ({}, None),
        ({"a": 0, "b": "1"}, "b"),
        ({"a": 0, "b": True}, "b"),
        ({"a": 0, "b": 2}, "b"),
        ({"a": 0, "b": 0}, "b"),
    ],
)
def test_an_order_with_holes_or_nonsense_is_refused(tmp_path, document, key):
    path = write_yaml(tmp_path / "o.yaml", document)
    with pytest.raises(ConfigError) as refused:
        read_joint_order(path)
    assert (refused.value.problems[0].file, refused.value.problems[0].key) == (path, key)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"arm": "a"}, "arm"),
        ({"arm": []}, "arm"),
        ({"arm": ["a", "a"]}, "arm"),
        ({"arm": ["a"], "hand": [1]}, "hand"),
        ({"state": {"arm": ["a"]}, "action": {"arm": "a"}}, "action.arm"),
        ({"state": {"arm": ["a"]}, "action": {}}, "action"),
    ],
)
def test_groups_that_are_no_lists_of_different_names_are_refused_by_key(tmp_path, document, key):
    path = write_yaml(tmp_path / "j.yaml", document)
    with pytest.raises(ConfigError) as refused:
        read_policy_joints(path)
    assert [(problem.file, problem.key) for problem in refused.value.problems] == [(path, key)]


def drawn(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, height, width, 3), dtype=torch.uint8, generator=generator)


def test_a_picture_that_is_shrunk_to_half_is_the_mean_of_each_four_pixels():
    images = drawn(8, 8)
    small = resized_with_padding(images, height=4, width=4)
    means = images.float().reshape(5, 4, 2, 4, 2, 3).mean(dim=(2, 4))
    assert small.dtype == torch.uint8
    assert torch.equal(small, means.round().to(torch.uint8))


def test_a_picture_keeps_its_aspect_between_black_bars():
    images = torch.full((2, 10, 20, 3), 200, dtype=torch.uint8)
    square = resized_with_padding(images, height=8, width=8)
    assert torch.equal(square[:, 2:6], torch.full((2, 4, 8, 3), 200, dtype=torch.uint8))
    assert not square[:, :2].any()
    assert not square[:, 6:].any()
    tall = torch.full((1, 4, 2, 3), 90, dtype=torch.uint8)
    large = resized_with_padding(tall, height=8, width=8)
    assert torch.equal(large[:, :, 2:6], torch.full((1, 8, 4, 3), 90, dtype=torch.uint8))
    assert large.sum() == 8 * 4 * 3 * 90
    assert resized_with_padding(images, height=10, width=20) is images


def test_even_a_sliver_keeps_a_pixel():
    shown = resized_with_padding(torch.full((1, 1, 1000, 3), 255, dtype=torch.uint8), height=8, width=8)
    assert shown.any(dim=-1).sum(dim=1).tolist() == [[1] * 8]
