"""The configuration of a GR00T policy."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.evaluation.job import contents_of_jobs
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.lerobot.reading import open_dataset
from isaaclab_arena.lerobot.writing import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena_gr00t.config import read_policy_config
from isaaclab_arena_gr00t.convert import main
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


@pytest.mark.parametrize("tag", ["OXE_DROID", "oxe_droid_relative_eef_relative_joint"])
def test_arenas_task_mode_of_droid_is_that_of_either_releases_robot(tmp_path, tag):
    path = write_yaml(tmp_path / "p.yaml", {"task_mode_name": "droid_manipulation", "embodiment_tag": tag})
    assert read_policy_config(path).embodiment_tag == tag


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action_horizon": 8}, {"action_chunk_length": "16 steps"}),
        ({"action_horizon": 0}, {"action_horizon": "got 0"}),
        ({"action_chunk_length": 0}, {"action_chunk_length": "got 0"}),
        ({"seed": -1}, {"seed": "at least 0"}),
        ({"target_image_size": [64, 64, 1]}, {"target_image_size": "3 channels"}),
        ({"original_image_size": [0, 64, 3]}, {"original_image_size": "3 channels"}),
        ({"target_image_size": [64, 64]}, {"target_image_size.2": "is missing"}),
        ({"policy_joints_config_path": "no.yaml"}, {"policy_joints_config_path": "'no.yaml'"}),
        ({"modality_config_path": "no.py"}, {"modality_config_path": "'no.py'"}),
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


def test_a_file_that_is_none_is_refused(tmp_path):
    assert problems(str(tmp_path / "no.yaml")).keys() == {None}
    assert problems(write_yaml(tmp_path / "list.yaml", [1])).keys() == {None}


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


# How a job is made, and for each of its contents a file, some of its bytes, and those with one other byte.
CASES: dict[str, tuple[Callable[[Path], dict[str, Any]], dict[str, tuple[str, bytes, bytes]]]] = {
    "gr00t": (
        gr00t_job,
        {
            "model_path model.safetensors": ("checkpoint/model.safetensors", b"\0", b"\1"),
            "model_path processor_config.json": ("checkpoint/processor_config.json", b" ", b"\t"),
            "policy_config_yaml_path policy.yaml": ("policy.yaml", b"\n- 64", b"\n- 65"),
            "policy_joints_config_path joints.yaml": ("joints.yaml", b"# ", b"#-"),
        },
    ),
    "lerobot": (
        lerobot_job,
        {
            "dataset_path data": ("dataset/data", b"parquet-cpp-arrow", b"parquet-cpp-arroW"),
            "dataset_path meta": ("dataset/meta/info.json", b"\n", b" "),
        },
    ),
}


@pytest.mark.parametrize(("made", "changes"), CASES.values(), ids=CASES)
def test_one_other_byte_is_another_content_and_the_run_does_not_go_on(tmp_path, capsys, made, changes):
    job = {"name": "a", "arena_env_args": {"environment": "reach", "num_envs": 1}, **made(tmp_path)}
    path = write_jobs(tmp_path / "jobs.json", [job])
    command = ["--eval_jobs_config", str(path), "--device", "cpu", "--no_dataset", "--output_dir"]
    assert evaluate([*command, str(tmp_path / "out")]) == 0
    contents = read_run_plan(tmp_path / "out").jobs[0].contents
    assert contents is not None
    before = contents.policy
    for name, (file, some, other) in changes.items():
        changed = tmp_path / file
        another_byte(changed if changed.is_file() else next(changed.rglob("*.parquet")), some, other)
        after = contents_of_jobs(resolve_jobs(load_jobs_file(path).jobs))["a"].policy
        assert [key for key, content in before.items() if after[key] != content] == [name]
        before = after
    capsys.readouterr()
    assert evaluate([*command, str(tmp_path / "out"), "--resume"]) == 2
    told = "".join(capsys.readouterr().err.split("\n"))
    assert all(f"job 'a': {name}: was " in told for name in changes)


def arguments(command, dataset, output_dir, *more):
    return [command, "--dataset", str(dataset), "--output_dir", str(output_dir), *more]


def test_a_run_is_converted_and_back_from_the_command_line(tmp_path, capsys):
    run_directory = record_run(tmp_path / "run")
    to = arguments(
        "to_lerobot", run_directory, tmp_path / "dataset", "--version", "v3.0", "--no_videos", "--only_successes"
    )
    assert main([*to, "--state_names", "robot_joint_pos", "--state_names", "cube_pos"]) == 0
    assert "3 episodes, 15 control steps" in capsys.readouterr().out
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
