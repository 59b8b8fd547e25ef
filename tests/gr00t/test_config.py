import os

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyConfig, read_policy_config
from tests.gr00t.fakes import write_yaml


def problems(path: str) -> dict[str | None, str]:
    """Problems of a YAML file, by key."""
    with pytest.raises(ConfigError) as refused:
        read_policy_config(path)
    assert {problem.file for problem in refused.value.problems} == {path}
    return {problem.key: problem.message for problem in refused.value.problems}


def test_what_the_file_does_not_say_is_as_in_isaac_lab_arena(tmp_path):
    config = read_policy_config(write_yaml(tmp_path / "p.yaml", {"model_path": "m"}))
    assert (config.action_horizon, config.action_chunk_length, config.seed) == (16, 16, 10)
    assert (config.embodiment_tag, config.language_instruction) == ("NEW_EMBODIMENT", "")
    assert (config.pov_cam_name_sim, config.target_image_size) == (("robot_head_cam_rgb",), (480, 640, 3))


def test_a_file_of_isaac_lab_arena_is_understood(tmp_path):
    for name in ("gr00t_26dof.yaml", "36dof.yaml", "54dof.yaml"):
        write_yaml(tmp_path / name, {"a": ["b"]})
    config = read_policy_config(
        write_yaml(
            tmp_path / "gr1.yaml",
            {
                "language_instruction": "Reach out and open the microwave.",
                "model_path": "/models/gr1",
                "action_horizon": 16,
                "embodiment_tag": "gr1",
                "denoising_steps": 4,
                "original_image_size": [512, 512, 3],
                "target_image_size": [512, 512, 3],
                "policy_joints_config_path": "gr00t_26dof.yaml",
                "task_mode_name": "gr1_tabletop_manipulation",
                "action_joints_config_path": "36dof.yaml",
                "state_joints_config_path": "54dof.yaml",
                "policy_device": "cuda",
                "video_backend": "decord",
                "pov_cam_name_sim": "robot_pov_cam_rgb",
                "action_chunk_length": 16,
                "seed": 10,
            },
        )
    )
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


@pytest.mark.parametrize("tag", ["OXE_DROID", "oxe_droid_relative_eef_relative_joint"])
def test_arenas_task_mode_of_droid_is_that_of_either_releases_robot(tmp_path, tag):
    path = write_yaml(tmp_path / "p.yaml", {"task_mode_name": "droid_manipulation", "embodiment_tag": tag})
    assert read_policy_config(path).embodiment_tag == tag


def test_everything_that_is_wrong_is_told_at_once_with_file_and_key(tmp_path):
    found = problems(
        write_yaml(
            tmp_path / "p.yaml", {"action_horizn": 8, "action_chunk_length": "8", "pov_cam_name_sim": 3, "seed": 1.5}
        )
    )
    assert "did you mean 'action_horizon'?" in found.pop("action_horizn")
    assert found.pop("action_chunk_length") == '"8" is not a whole number'
    assert found.pop("seed") == "1.5 is not a whole number"
    assert all(str(key).startswith("pov_cam_name_sim") for key in found)
    assert found


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"action_horizon": 8}, "action_chunk_length", "16 steps of a chunk cannot be played from answers of"),
        ({"action_horizon": 0}, "action_horizon", "must be at least 1, got 0"),
        ({"action_chunk_length": 0}, "action_chunk_length", "must be at least 1, got 0"),
        ({"seed": -1}, "seed", "must be at least 0"),
        ({"target_image_size": [64, 64, 1]}, "target_image_size", "must be height, width and 3 channels"),
        ({"original_image_size": [0, 64, 3]}, "original_image_size", "must be height, width and 3 channels"),
        ({"target_image_size": [64, 64]}, "target_image_size.2", "is missing"),
        ({"policy_joints_config_path": "no.yaml"}, "policy_joints_config_path", "there is no file 'no.yaml'"),
        ({"modality_config_path": "no.py"}, "modality_config_path", "there is no file 'no.py'"),
        ({"task_mode_name": "gr1_tabletop"}, "task_mode_name", "did you mean 'gr1_tabletop_manipulation'?"),
        ({"task_mode_name": "droid_manipulation"}, "task_mode_name", "is for embodiment_tag OXE_DROID or OXE_D"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(tmp_path, changes, key, message):
    found = problems(write_yaml(tmp_path / "p.yaml", changes))
    assert message in found[key]


def test_a_file_that_is_none_is_refused(tmp_path):
    assert problems(str(tmp_path / "no.yaml")) == {None: "there is no such file"}
    assert problems(write_yaml(tmp_path / "list.yaml", [1])) == {None: "must be a mapping from key to value"}


def test_every_key_is_explained():
    explained = Gr00tClosedloopPolicyConfig.__doc__ or ""
    assert all(f"        {name}: " in explained for name in Gr00tClosedloopPolicyConfig.__dataclass_fields__)
