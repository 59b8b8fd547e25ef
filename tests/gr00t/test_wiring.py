"""Where a model's inputs and outputs are in an environment, and what is said where they are not."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena_gr00t.config import (
    Gr00tClosedloopPolicyConfig,
    JointFiles,
    Modality,
    ModelInterface,
    PolicyJoints,
    model_interface,
)
from isaaclab_arena_gr00t.observations import Wiring, pictures, wired
from tests.environments.building import build
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


def test_everything_is_found_by_its_name():
    wiring = wire()
    state_order = JOINTS + FINGERS
    assert wiring.cameras == {"ego": "front", "aside": "side"}
    assert wiring.state_terms == ("robot_joint_pos", "fingers")
    for group, joints in GROUPS["state"].items():
        assert [state_order[place] for place in wiring.state[group]] == joints
    for group, joints in GROUPS["action"].items():
        assert [ACTION[place] for place in wiring.action[group]] == joints


def test_cameras_in_a_list_go_by_order_unless_they_have_the_names_of_the_video_keys():
    assert wire(pov_cam_name_sim=("side", "front")).cameras == {"ego": "side", "aside": "front"}
    named = dataclasses.replace(MODEL, video_keys=("side", "front"))
    assert wire(model=named, pov_cam_name_sim=("front", "side")).cameras == {"side": "side", "front": "front"}


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
    assert "'ego_view' by camera 'wrist_cam_rgb' and 'wrist_view' by 'ego_cam_rgb'" in doubt


def test_a_single_camera_may_be_a_text():
    alone = dataclasses.replace(MODEL, video_keys=("ego",))
    assert wire(model=alone, pov_cam_name_sim="side").cameras == {"ego": "side"}


@pytest.mark.parametrize(
    ("cameras", "key", "message"),
    [
        (("front",), "pov_cam_name_sim", "names 1 cameras, the model looks through 2: ego, aside"),
        ({"ego": "front"}, "pov_cam_name_sim.aside", "is missing; the model looks at it"),
        (
            {"ego": "front", "aside": "side", "egg": "front"},
            "pov_cam_name_sim.egg",
            "no video key 'egg'; did you mean 'ego'?",
        ),
        (("front", "sid"), "pov_cam_name_sim", "the environment has no camera 'sid'; did you mean 'side'?"),
    ],
)
def test_cameras_that_do_not_match_are_refused(cameras, key, message):
    [(found_key, found)] = refusals(pov_cam_name_sim=cameras)
    assert (found_key, message in found) == (key, True)


def test_an_environment_without_pictures_says_how_to_get_them():
    [(key, message), _] = refusals(LimbEnvironment(1, cameras=()))
    assert (key, "set enable_cameras: true in arena_env_args" in message) == ("pov_cam_name_sim", True)


def test_a_camera_of_another_size_or_without_colours_is_refused():
    [(key, message), _] = refusals(original_image_size=(480, 640, 3))
    assert (key, message) == ("original_image_size", "is [480, 640, 3], but 'front' gives [6, 8, 3]")
    assert wire(original_image_size=(6, 8, 3))
    environment = LimbEnvironment(1)
    environment.observation_spec = {
        **environment.observation_spec,
        "camera_obs": {
            "front": ArraySpec(shape=(4, 6, 8), dtype=torch.uint8),
            "side": ArraySpec(shape=(6, 8, 3), dtype=torch.float32),
        },
    }
    (_, stacked), (_, deep) = refusals(environment)
    assert "'front' has shape (4, 6, 8), and the first four may be channels or pictures" in stacked
    assert "'side' is no colour picture" in deep


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_model_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    environment = LimbEnvironment(1)
    environment.observation_spec = {
        **environment.observation_spec,
        "camera_obs": {name: ArraySpec(shape=lies.shape, dtype=torch.uint8) for name in ("front", "side")},
    }
    wiring = wire(environment, original_image_size=(6, 8, 3), target_image_size=(6, 8, 3))
    shown: dict[str, Any] = {name: torch.from_numpy(np.stack([lies, lies])) for name in ("front", "side")}
    found = pictures({"camera_obs": shown}, wiring, [1])
    assert [values.tolist() for values in found.values()] == [[colours.tolist()]] * 2


def test_a_group_that_no_file_knows_is_the_observation_of_that_name_and_the_only_action_the_whole_of_it():
    model = dataclasses.replace(MODEL, state_keys=("nameless", "fingers"), action_keys=("everything",), dimensions=None)
    wiring = wire(model=model, joint_files=JointFiles(state_order=JOINTS))
    assert wiring.state_terms == ("nameless", "fingers")
    assert wiring.state == {"nameless": (0, 1, 2), "fingers": (3, 4)}
    assert wiring.action == {"everything": (0, 1, 2, 3, 4)}


def test_joints_and_whole_observations_may_be_mixed():
    model = dataclasses.replace(MODEL, state_keys=("arm", "nameless"), dimensions=None)
    wiring = wire(model=model)
    assert wiring.state_terms == ("robot_joint_pos", "fingers", "nameless")
    assert wiring.state == {"arm": (3, 2), "nameless": (6, 7, 8)}


@pytest.mark.parametrize(
    ("groups", "messages"),
    [
        ({"arm": ["wrist", "elbows"]}, ["state group 'arm': there is no joint 'elbows'; did you mean 'elbow'?"]),
        ({"leg": ["toe"], "hand": ["thumb", "left_finger"]}, ["no joint 'toe'", "no joint 'thumb'"]),
    ],
)
def test_every_joint_of_the_state_that_is_missing_is_named(groups, messages):
    found = refusals(joint_files=files({**GROUPS, "state": {**GROUPS["state"], **groups}}))
    assert {key for key, _ in found} == {"policy_joints_config_path"}
    assert all(part in message for part, (_, message) in zip(messages, found, strict=True))


def test_a_state_that_the_environment_does_not_observe_is_refused():
    [(key, message)] = refusals(state_names_sim=("robot_joint_position", "fingers"))
    assert (key, message) == (
        "state_names_sim",
        "the environment observes no 'robot_joint_position'; did you mean 'robot_joint_pos'?",
    )
    [(_, message)] = refusals(model=dataclasses.replace(MODEL, state_keys=("armm",)))
    assert "observes no 'armm'" in message


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"hand": ["grip", "knee"]}, "2 of the model's actions is for 'knee'"),
        ({"arm": ["elbow"]}, "none of the model's actions is for 'wrist'"),
        ({"arm": ["elbow", "nose"]}, "action group 'arm': there is no joint 'nose'"),
    ],
)
def test_every_joint_of_the_action_gets_exactly_one_value(groups, message):
    [(key, found)] = refusals(joint_files=files({**GROUPS, "action": {**GROUPS["action"], **groups}}))
    assert (key, message in found) == ("policy_joints_config_path", True)


def test_an_action_that_no_file_explains_is_refused():
    found = refusals(joint_files=JointFiles(), model=dataclasses.replace(MODEL, state_keys=("fingers",)))
    assert [message for _, message in found] == [
        f"does not say which joints the model's action '{group}' holds" for group in MODEL.action_keys
    ]


def test_sizes_that_the_model_was_not_made_for_are_refused():
    model = dataclasses.replace(MODEL, dimensions={"state": {"arm": 7}, "action": {"hand": 2}})
    found = refusals(model=model)
    assert "the model's state 'arm' has 7 numbers, the environment has 2 for it" in found[0][1]
    assert "the model's action 'hand' has 2 numbers, the environment has 1 for it" in found[1][1]


def test_a_horizon_beyond_the_models_is_refused():
    [(key, message)] = refusals(action_horizon=HORIZON + 1)
    assert (key, message) == ("action_horizon", "is 7, but the model predicts 6 steps; make it 6 or less")


def test_an_order_of_joints_must_agree_with_the_environments_own_names():
    assert wire(joint_files=files(state_order=JOINTS + FINGERS, action_order=ACTION)) == wire()
    swapped = ("knee", "hip", *JOINTS[2:], *FINGERS)
    found = refusals(joint_files=files(state_order=swapped, action_order=ACTION[:4]))
    assert found == [
        ("state_joints_config_path", "says that joint 0 is 'knee', in the environment it is 'hip'"),
        ("state_joints_config_path", "says that joint 1 is 'hip', in the environment it is 'knee'"),
        ("action_joints_config_path", "lists 4 joints, the environment has 5"),
    ]


def test_joints_without_names_get_them_from_the_order_or_are_refused():
    environment = LimbEnvironment(1)
    environment.action_spec = ArraySpec(shape=(5,))
    assert wire(environment, joint_files=files(action_order=ACTION)).action == wire().action
    assert refusals(environment)[0] == (
        "action_joints_config_path",
        "is missing; the environment does not name all its joints",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"video": ([0, 1], ["ego"])},
            r"wants 'video' at the steps \[0, 1\]; the present one, 0, and up to 256 before",
        ),
        ({"video": ([-257, 0], ["ego"])}, r"wants 'video' at the steps \[-257, 0\]"),
        ({"video": ([0] * 258, ["ego"])}, r"wants 'video' at the steps \[0, 0"),
        ({"state": ([], ["arm"])}, r"wants 'state' at the steps \[\]"),
        ({"language": ([0], [])}, "takes no instruction"),
        ({"action": ([0], [])}, "the model has no actions"),
    ],
)
def test_a_model_that_wants_what_is_not_given_is_refused(changes, message):
    modalities: dict[str, Modality] = {
        name: FakeModality(delta_indices=steps, modality_keys=keys) for name, (steps, keys) in changes.items()
    }
    with pytest.raises(ConfigError, match=message):
        model_interface({**MODALITIES, **modalities}, None)


def test_a_model_without_a_state_needs_none():
    nothing = FakeModality(delta_indices=[], modality_keys=[])
    model = model_interface({**MODALITIES, "state": nothing}, None)
    assert wire(model=model).state_terms == ()


def test_the_panda_of_this_program_has_what_its_files_say():
    from isaaclab_arena_gr00t.config import (  # noqa: PLC0415
        read_joint_order,
        read_policy_config,
        read_policy_joints,
    )
    from tests.gr00t.panda_checkpoint import CONFIGS  # noqa: PLC0415

    config = read_policy_config(CONFIGS / "panda_closedloop.yaml")
    joint_files = JointFiles(
        policy=read_policy_joints(CONFIGS / "panda_joints.yaml"),
        state_order=read_joint_order(CONFIGS / "panda_state_joints.yaml"),
        action_order=read_joint_order(CONFIGS / "panda_action_joints.yaml"),
    )
    model = ModelInterface(
        video_keys=("head", "wrist"),
        state_keys=("arm", "gripper"),
        action_keys=("arm", "gripper"),
        language_keys=("annotation.human.task_description",),
        horizon=16,
        dimensions={"state": {"arm": 7, "gripper": 2}, "action": {"arm": 7, "gripper": 1}},
    )
    environment = build("reach", enable_cameras=True, camera_size=16)
    wiring = wired(environment, model, config, joint_files, file="p.yaml")
    assert wiring.cameras == {"head": "robot_head_cam_rgb", "wrist": "wrist_cam_rgb"}
    assert wiring.action == {"arm": (0, 1, 2, 3, 4, 5, 6), "gripper": (7,)}
    environment.close()
