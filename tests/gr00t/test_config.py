"""The configuration of a GR00T policy."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyConfig, read_policy_config
from isaaclab_arena_gr00t.convert import main
from isaaclab_arena_gr00t.data.from_lerobot import open_dataset
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from tests.end_to_end.launching import write_jobs
from tests.gr00t.data.recordings import record, record_run
from tests.gr00t.fakes import write_yaml
from tests.gr00t.panda_checkpoint import CONFIGS, write_panda_yaml


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


# A run with a GR00T checkpoint or a LeRobot dataset knows by content what it evaluated: one byte makes another one.


WEIGHTS = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'


class Still(Gr00tClosedloopPolicy):
    """Is made of what the policy is made of, loads nothing and stands still."""

    def load_policy(self) -> Any:
        return None

    def check_environment(self, env: Environment) -> None: ...

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.zeros(env.num_envs, *env.action_spec.shape)


def gr00t_job(directory: Path) -> dict[str, Any]:
    """Write a checkpoint and the YAML files that go with it, and return a job that evaluates it."""
    (directory / "checkpoint").mkdir()
    (directory / "checkpoint" / "config.json").write_text("{ }")
    (directory / "checkpoint" / "processor_config.json").write_text("{ }")
    (directory / "checkpoint" / "model.safetensors").write_bytes(
        len(WEIGHTS).to_bytes(8, "little") + WEIGHTS + b"\0\0\0\0"
    )
    shutil.copy(CONFIGS / "panda_joints.yaml", directory / "joints.yaml")
    yaml = write_panda_yaml(directory / "policy.yaml", policy_joints_config_path="joints.yaml")
    return {
        "policy_type": f"{__name__}.{Still.__qualname__}",
        "policy_config_dict": {"policy_config_yaml_path": yaml, "policy_device": "cpu"},
        "num_steps": 2,
    }


def lerobot_job(directory: Path) -> dict[str, Any]:
    """Write a dataset of two short trajectories, and return a job that plays them."""
    record(directory / "run" / "lift", "lift", [3, 2])
    write_lerobot_dataset(directory / "run", directory / "dataset", LeRobotOptions(no_videos=True))
    options = {"dataset_path": str(directory / "dataset")}
    return {"policy_type": "replay_lerobot", "policy_config_dict": options, "num_episodes": 2}


def another_byte(path: Path, before: bytes, after: bytes) -> None:
    """Change the last place in a file where there are some bytes to others, of which one differs."""
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
    head, found, tail = path.read_bytes().rpartition(before)
    assert found
    path.write_bytes(head + after + tail)


CASES = {
    "weights": (gr00t_job, "checkpoint/model.safetensors", b"\0", b"\1", "model_path model.safetensors"),
    "processor": (gr00t_job, "checkpoint/processor_config.json", b" ", b"\t", "model_path processor_config.json"),
    "yaml": (gr00t_job, "policy.yaml", b"\n- 64", b"\n- 65", "policy_config_yaml_path policy.yaml"),
    "joints": (gr00t_job, "joints.yaml", b"# ", b"#-", "policy_joints_config_path joints.yaml"),
    "actions": (lerobot_job, "dataset/data", b"parquet-cpp-arrow", b"parquet-cpp-arroW", "dataset_path data"),
    "meta": (lerobot_job, "dataset/meta/info.json", b"\n", b" ", "dataset_path meta"),
}


@pytest.mark.parametrize(("made", "file", "before", "after", "name"), CASES.values(), ids=CASES)
def test_one_other_byte_is_another_content_and_the_run_does_not_go_on(
    tmp_path, capsys, made: Callable[[Path], dict[str, Any]], file, before, after, name
):
    job = {"name": "a", "arena_env_args": {"environment": "reach", "num_envs": 1}, **made(tmp_path)}
    command = ["--eval_jobs_config", str(write_jobs(tmp_path / "jobs.json", [job])), "--device", "cpu", "--no_dataset"]
    assert evaluate([*command, "--output_dir", str(tmp_path / "first")]) == 0
    path = tmp_path / file
    another_byte(path if path.is_file() else next(path.rglob("*.parquet")), before, after)
    capsys.readouterr()
    assert evaluate([*command, "--output_dir", str(tmp_path / "first"), "--resume"]) == 2
    told = "".join(capsys.readouterr().err.split("\n"))
    assert f"job 'a': {name}: was " in told
    assert "start a new run in another directory" in told
    assert evaluate([*command, "--output_dir", str(tmp_path / "second")]) == 0
    first, second = (read_run_plan(tmp_path / run).jobs[0].contents for run in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.policy.keys() == second.policy.keys()
    assert [key for key, content in first.policy.items() if second.policy[key] != content] == [name]


def arguments(command, dataset, output_dir, *more):
    return [command, "--dataset", str(dataset), "--output_dir", str(output_dir), *more]


def test_a_run_is_converted_and_back_from_the_command_line(tmp_path, capsys):
    run_directory = record_run(tmp_path / "run")
    to = arguments(
        "to_lerobot", run_directory, tmp_path / "dataset", "--version", "v3.0", "--no_videos", "--only_successes"
    )
    assert main([*to, "--state_names", "robot_joint_pos", "--state_names", "cube_pos"]) == 0
    assert "3 episodes, 15 control steps, 2 instructions, 0 cameras" in capsys.readouterr().out
    dataset = open_dataset(tmp_path / "dataset")
    assert dataset.features["observation.state"]["names"][-1] == "cube_pos_2"
    assert main(arguments("from_lerobot", tmp_path / "dataset", tmp_path / "back")) == 0
    assert list_episodes(tmp_path / "back/lift/dataset_lift.hdf5") == [0, 1]
    assert list_episodes(tmp_path / "back/push/dataset_push.hdf5") == [2]


def test_a_single_recording_and_a_pattern_are_taken_too(tmp_path):
    run_directory = record_run(tmp_path / "run")
    recording = run_directory / "lift/dataset_lift.hdf5"
    assert main(arguments("to_lerobot", recording, tmp_path / "one", "--no_videos")) == 0
    assert len(open_dataset(tmp_path / "one").episodes) == 3
    assert main(arguments("to_lerobot", run_directory / "*/dataset_*.hdf5", tmp_path / "all", "--no_videos")) == 0
    assert len(open_dataset(tmp_path / "all").episodes) == 5


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("to_lerobot", 2, "--dataset: no recording at"),
        ("from_lerobot", 1, "there is no LeRobot dataset"),
    ],
)
def test_what_is_not_there_is_told_with_an_exit_code(tmp_path, capsys, command, code, message):
    assert main(arguments(command, tmp_path / "nothing", tmp_path / "out")) == code
    assert message in capsys.readouterr().err


def test_a_rate_below_one_is_refused(tmp_path, capsys):
    assert main(arguments("to_lerobot", tmp_path, tmp_path / "out", "--fps", "0")) == 2
    assert "--fps: must be at least 1, got 0" in capsys.readouterr().err
