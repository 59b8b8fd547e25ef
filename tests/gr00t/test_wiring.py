"""Where a model's inputs and outputs are in an environment, and what is said where they are not."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import contents_of_jobs
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.specs import ArraySpec, resized_with_padding
from isaaclab_arena.lerobot.reading import open_dataset
from isaaclab_arena.lerobot.writing import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena_gr00t.config import (
    Gr00tClosedloopPolicyConfig,
    JointFiles,
    ModelInterface,
    PolicyJoints,
    model_interface,
    read_joint_order,
    read_policy_config,
    read_policy_joints,
)
from isaaclab_arena_gr00t.convert import main
from isaaclab_arena_gr00t.observations import Wiring, wired
from tests.gr00t.data.recordings import record, record_run
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
from tests.gr00t.panda_checkpoint import CONFIGS, POLICY, write_panda_yaml
from tests.policy.playing import job_of, refused

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


CAMERAS, JOINT_FILE = "pov_cam_name_sim", "policy_joints_config_path"
BLIND = {"environment": LimbEnvironment(1, cameras=())}
ANOTHER_SIZE = dataclasses.replace(MODEL, dimensions={"state": {"arm": 7}, "action": {"hand": 2}})
# What is changed, and the key and a telling part of each problem.
MISFITS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
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
    assert "(4, 6, 8)" in stacked
    assert "'side' is" in deep
    assert wire(original_image_size=(6, 8, 3))


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
    assert "is 'hip'" in found[1][1]


def test_joints_without_names_get_them_from_the_order_or_are_refused():
    environment = LimbEnvironment(1)
    environment.action_spec = ArraySpec(shape=(5,))
    assert wire(environment, joint_files=files(action_order=ACTION)).action == wire().action
    assert refusals(environment)[0][0] == "action_joints_config_path"
    environment.action_spec = ArraySpec(shape=(5,), names=("hip", "knee", "hip", "elbow", "wrist"))
    assert any("positions 0 and" in message for _, message in refusals(environment))


@pytest.mark.parametrize(
    ("name", "steps", "keys", "says"),
    [
        ("video", [0, 1], ["ego"], r"\[0, 1\]"),
        ("video", [-257, 0], ["ego"], r"\[-257, 0\]"),
        ("state", [], ["arm"], r"\[\]"),
        ("language", [0], [], "no instruction"),
        ("action", [0], [], "no actions"),
    ],
)
def test_a_model_that_wants_what_is_not_given_is_refused(name, steps, keys, says):
    with pytest.raises(ConfigError, match=says):
        model_interface({**MODALITIES, name: FakeModality(delta_indices=steps, modality_keys=keys)}, None)


# Joints and images, as a GR00T model names them.


@pytest.mark.parametrize(
    ("read", "document", "key"),
    [
        (read_joint_order, [], None),
        (read_joint_order, {"a": 0, "b": "1"}, "b"),
        (read_joint_order, {"a": 0, "b": True}, "b"),
        (read_joint_order, {"a": 0, "b": 2}, "b"),
        (read_joint_order, {"a": 0, "b": 0}, "b"),
        (read_policy_joints, {"arm": "a"}, "arm"),
        (read_policy_joints, {"arm": ["a", "a"]}, "arm"),
        (read_policy_joints, {"arm": ["a"], "hand": [1]}, "hand"),
        (read_policy_joints, {"state": {"arm": ["a"]}, "action": {"arm": "a"}}, "action.arm"),
    ],
)
def test_orders_with_holes_and_groups_that_are_no_lists_of_different_names_are_refused_by_key(
    tmp_path, read, document, key
):
    path = write_yaml(tmp_path / "j.yaml", document)
    with refused(key) as found:
        read(path)
    assert found[0].file == path


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


# The configuration of a GR00T policy.


def problems(path: str) -> dict[str | None, str]:
    """Problems of a YAML file, by key."""
    with pytest.raises(ConfigError) as refused:
        read_policy_config(path)
    assert {problem.file for problem in refused.value.problems} == {path}
    return {problem.key: problem.message for problem in refused.value.problems}


GR1 = """
language_instruction: Reach out and open the microwave.
model_path: /models/gr1
action_horizon: 16
embodiment_tag: gr1
denoising_steps: 4
original_image_size: [512, 512, 3]
target_image_size: [512, 512, 3]
policy_joints_config_path: gr00t_26dof.yaml
task_mode_name: gr1_tabletop_manipulation
action_joints_config_path: 36dof.yaml
state_joints_config_path: 54dof.yaml
policy_device: cuda
video_backend: decord
pov_cam_name_sim: robot_pov_cam_rgb
action_chunk_length: 16
seed: 10
"""


def test_a_file_of_isaac_lab_arena_is_understood(tmp_path):
    # What it leaves out is as there, too.
    config = read_policy_config(write_yaml(tmp_path / "p.yaml", {"model_path": "m"}))
    assert (config.action_horizon, config.action_chunk_length, config.seed) == (16, 16, 10)
    assert (config.embodiment_tag, config.language_instruction) == ("NEW_EMBODIMENT", "")
    assert (config.pov_cam_name_sim, config.target_image_size) == (("robot_head_cam_rgb",), (480, 640, 3))
    for name in ("gr00t_26dof.yaml", "36dof.yaml", "54dof.yaml"):
        write_yaml(tmp_path / name, {"a": ["b"]})
    (tmp_path / "gr1.yaml").write_text(GR1)
    config = read_policy_config(str(tmp_path / "gr1.yaml"))
    assert config.original_image_size == (512, 512, 3)
    assert config.pov_cam_name_sim == "robot_pov_cam_rgb"


def test_a_path_is_found_beside_the_file_first_and_then_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    write_yaml(tmp_path / "here" / "own.yaml", {"a": ["b"]})
    write_yaml(tmp_path / "there" / "own.yaml", {"a": ["b"]})
    write_yaml(tmp_path / "there" / "other.yaml", {"a": 0})
    (tmp_path / "here" / "model").mkdir()
    document = {
        "model_path": "model",
        "policy_joints_config_path": "own.yaml",
        "state_joints_config_path": "other.yaml",
    }
    path = write_yaml(tmp_path / "here" / "p.yaml", document)
    monkeypatch.chdir(tmp_path / "there")
    config = read_policy_config(os.path.relpath(path))
    assert config.policy_joints_config_path == "../here/own.yaml"
    assert config.state_joints_config_path == "other.yaml"
    assert config.model_path == "../here/model"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action_horizon": 8}, {"action_chunk_length": "16 steps"}),
        ({"action_chunk_length": 0}, {"action_chunk_length": "got 0"}),
        ({"seed": -1}, {"seed": "at least 0"}),
        ({"target_image_size": [64, 64, 1]}, {"target_image_size": "3 channels"}),
        ({"target_image_size": [64, 64]}, {"target_image_size.2": "is missing"}),
        ({"policy_joints_config_path": "no.yaml"}, {"policy_joints_config_path": "'no.yaml'"}),
        ({"task_mode_name": "gr1_tabletop"}, {"task_mode_name": "'gr1_tabletop_manipulation'?"}),
        ({"task_mode_name": "droid_manipulation"}, {"task_mode_name": "OXE_DROID"}),
        # Everything at once.
        (
            {"action_horizn": 8, "action_chunk_length": "8", "seed": 1.5},
            {"action_horizn": "'action_horizon'?", "action_chunk_length": '"8"', "seed": "1.5"},
        ),
    ],
)
def test_wrong_values_are_refused_by_their_keys(tmp_path, changes, says):
    found = problems(write_yaml(tmp_path / "p.yaml", changes))
    assert found.keys() == says.keys()
    assert all(part in str(found[key]) for key, part in says.items())


# A run with a GR00T checkpoint or a LeRobot dataset knows by content what it evaluated: one byte makes another one.


WEIGHTS = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'


def model_of_gr00t(directory: Path) -> JobConfig:
    """Write a checkpoint and the YAML files that go with it, and return a job that evaluates it."""
    (directory / "checkpoint").mkdir()
    (directory / "checkpoint" / "config.json").write_text("{ }")
    (directory / "checkpoint" / "processor_config.json").write_text("{ }")
    weights = len(WEIGHTS).to_bytes(8, "little") + WEIGHTS + bytes(4)
    (directory / "checkpoint" / "model.safetensors").write_bytes(weights)
    shutil.copy(CONFIGS / "panda_joints.yaml", directory / "joints.yaml")
    yaml = write_panda_yaml(directory / "policy.yaml", policy_joints_config_path="joints.yaml")
    return job_of(POLICY, {"policy_config_yaml_path": yaml, "policy_device": "cpu"})


def dataset_of_lerobot(directory: Path) -> JobConfig:
    """Write a dataset of two short trajectories, and return a job that plays them."""
    record(directory / "run" / "lift", "lift", [3, 2])
    write_lerobot_dataset(directory / "run", directory / "dataset", LeRobotOptions(no_videos=True))
    return job_of("replay_lerobot", {"dataset_path": str(directory / "dataset")})


@pytest.mark.parametrize(
    ("make", "file", "some", "other", "name"),
    [
        (model_of_gr00t, "checkpoint/model.safetensors", b"\0", b"\1", "model_path model.safetensors"),
        (model_of_gr00t, "checkpoint/processor_config.json", b" ", b"\t", "model_path processor_config.json"),
        (model_of_gr00t, "policy.yaml", b"\n- 64", b"\n- 65", "policy_config_yaml_path policy.yaml"),
        (model_of_gr00t, "joints.yaml", b"# ", b"#-", "policy_joints_config_path joints.yaml"),
        (
            dataset_of_lerobot,
            "dataset/data/*/*.parquet",
            b"parquet-cpp-arrow",
            b"parquet-cpp-arroW",
            "dataset_path data",
        ),
        (dataset_of_lerobot, "dataset/meta/info.json", b"\n", b" ", "dataset_path meta"),
    ],
)
def test_one_other_byte_is_another_content_of_that_name(tmp_path, make, file, some, other, name):
    def contents() -> dict[str, str]:
        return dict(contents_of_jobs(resolve_jobs([job]))["a"].policy)

    job = make(tmp_path)
    before, path = contents(), next(tmp_path.glob(file))
    head, found, tail = path.read_bytes().rpartition(some)
    assert found
    path.write_bytes(head + other + tail)
    assert {key for key, content in before.items() if contents()[key] != content} == {name}


def arguments(command, dataset, output_dir, *more):
    return [command, "--dataset", str(dataset), "--output_dir", str(output_dir), *more]


def test_a_run_is_converted_and_back_from_the_command_line(tmp_path, capsys):
    run_directory = record_run(tmp_path / "run")
    to = arguments(
        "to_lerobot", run_directory, tmp_path / "dataset", "--version", "v3.0", "--no_videos", "--only_successes"
    )
    assert main([*to, "--state_names", "robot_joint_pos", "--state_names", "cube_pos"]) == 0
    assert "3 episodes, 15" in capsys.readouterr().out
    dataset = open_dataset(tmp_path / "dataset")
    assert dataset.features["observation.state"]["names"][-1] == "cube_pos_2"
    assert main(arguments("from_lerobot", tmp_path / "dataset", tmp_path / "back")) == 0
    assert list_episodes(tmp_path / "back/lift/dataset_lift.hdf5") == [0, 1]
    assert list_episodes(tmp_path / "back/push/dataset_push.hdf5") == [2]
    pattern = run_directory / "*/dataset_*.hdf5"
    assert main(arguments("to_lerobot", pattern, tmp_path / "all", "--no_videos")) == 0
    assert len(open_dataset(tmp_path / "all").episodes) == 5


@pytest.mark.parametrize(
    ("command", "more", "code", "message"),
    [
        ("to_lerobot", (), 2, "--dataset: no recording"),
        ("to_lerobot", ("--fps", "0"), 2, "--fps: must be at least 1"),
        ("from_lerobot", (), 1, "there is no LeRobot dataset"),
    ],
)
def test_what_cannot_be_converted_is_told_with_an_exit_code(tmp_path, capsys, command, more, code, message):
    assert main(arguments(command, tmp_path / "nothing", tmp_path / "out", *more)) == code
    assert message in capsys.readouterr().err
