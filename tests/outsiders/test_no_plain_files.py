"""Where a file is named and a pipe, a device or a directory lies, it is refused, and nothing opens it and waits."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import write_jobs
from tests.end_to_end.mistakes import GOOD
from tests.environments.six_axis import DESCRIPTION, MJCF
from tests.gr00t.fakes import write_policy_yaml


@pytest.fixture
def pipe(tmp_path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def refusal(capsys, tmp_path_factory) -> Callable[..., str]:
    """Return the refusal of a job with some keys, before anything starts."""
    path = tmp_path_factory.mktemp("asked") / "jobs.json"

    def refusal(policy_type: str = "zero_action", *, arena_env_args: dict | None = None, **options: Any) -> str:
        environment = {**GOOD["arena_env_args"], **(arena_env_args or {})}
        changes = {"arena_env_args": environment, "policy_type": policy_type, "policy_config_dict": options}
        write_jobs(path, [{**GOOD, **changes}])
        assert main(["validate", "--json", str(path)]) == 2
        found = json.loads(capsys.readouterr().out)["problems"]
        assert {(problem["file"], problem["job"]) for problem in found} == {(str(path), "good")}
        return "\n".join(f"{problem['key']}: {problem['message']}" for problem in found)

    return refusal


@pytest.fixture
def refused_robot(refusal, tmp_path) -> Callable[..., str]:
    """Return the refusal of a robot whose MJCF file, by default ``robot.xml``, holds this."""

    def refused_robot(mjcf: str, name: str = "robot.xml") -> str:
        if name == "robot.xml":
            (tmp_path / name).write_text(mjcf)
        path = tmp_path / "robot.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(DESCRIPTION), "mjcf": name}))
        message = refusal(arena_env_args={"embodiment": str(path)})
        assert message.startswith(f"arena_env_args.embodiment: {path}: mjcf: ")
        return message

    return refused_robot


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory"])
def test_what_is_no_file_is_refused_as_job_file_and_as_yaml_file_of_a_policy(kind, pipe, refusal, tmp_path, capsys):
    path = {"a pipe": pipe, "a device": Path("/dev/zero"), "a directory": pipe.parent}[kind]
    assert main(["validate", "--json", str(path)]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], f"is {kind}, not a file" in problem["message"]) == (str(path), True)
    message = refusal("gr00t_closedloop", policy_config_yaml_path=str(path))
    assert f"policy_config_dict.policy_config_yaml_path: {path}: is {kind}, not a file" in message
    for key in ("policy_joints_config_path", "state_joints_config_path"):
        named = write_policy_yaml(tmp_path, model_path="owner/name", **{key: str(path)})
        message = refusal("gr00t_closedloop", policy_config_yaml_path=named)
        assert f"{key}: '{path}' is {kind}, not a file" in message


def test_saved_conditions_that_are_a_pipe_are_refused(pipe, capsys, tmp_path):
    assert main(["validate", str(write_jobs(tmp_path / "jobs.json", [{**GOOD, "conditions": str(pipe)}]))]) == 2
    assert "job 'good': conditions: " in (told := capsys.readouterr().err)
    assert "is a pipe" in told


@pytest.mark.parametrize(
    ("name", "policy", "key"),
    [
        ("model_7.pt", "rsl_rl", "checkpoint_path"),
        ("dataset.hdf5", "replay", "replay_file_path"),
        ("e000000.h5", "replay", "replay_file_path"),
    ],
)
def test_a_checkpoint_or_a_recording_that_is_a_pipe_is_refused_by_its_name_and_in_its_directory(
    tmp_path, name, policy, key, refusal
):
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name, *([tmp_path / "*5"] if policy == "replay" else [])):
        message = refusal(policy, **{key: str(path)})
        assert f"policy_config_dict.{key}" in message
        assert f"{name}': is a pipe" in message


def test_a_checkpoints_yaml_file_that_is_a_pipe_is_refused(pipe, tmp_path, refusal):
    (tmp_path / "model_1.pt").write_bytes(b"")
    message = refusal("rsl_rl", checkpoint_path=str(tmp_path / "model_1.pt"), agent_cfg_path=str(pipe))
    assert "policy_config_dict.agent_cfg_path" in message
    assert "is a pipe" in message


def test_weights_of_a_model_that_are_a_pipe_are_refused(tmp_path, refusal):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    os.mkfifo(model / "model.safetensors")
    message = refusal("gr00t_closedloop", policy_config_yaml_path=write_policy_yaml(tmp_path, model_path=str(model)))
    assert f"model_path: '{model}' cannot be loaded: model.safetensors is a pipe" in message


@pytest.mark.parametrize("path", ["", "nul\0", "x" * 5000, "~nobody-of-that-name/x", "**/*.nothing", "/", "..."])
def test_a_recording_with_an_impossible_name_is_a_mistake(path, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert "replay_file_path" in refusal("replay", replay_file_path=path)


@pytest.mark.parametrize(
    "names",
    [
        '<asset><mesh name="m" file="pipe"/></asset>',
        '<asset><texture name="t" type="2d" file="pipe"/></asset>',
        '<asset><hfield name="h" file="pipe" size="1 1 1 1"/></asset>',
        '<include file="pipe"/>',
    ],
)
def test_a_pipe_that_an_mjcf_file_names_is_refused(pipe, names, refused_robot):
    assert f"{pipe}: is a pipe" in refused_robot(f"<mujoco>{names}</mujoco>")


def test_a_robot_whose_mjcf_file_is_a_pipe_is_refused(pipe, refused_robot):
    assert f"'{pipe}': is a pipe" in refused_robot("", pipe.name)


def test_too_many_names_in_too_many_directories_are_refused_and_not_looked_for(refused_robot):
    directories = "".join(f'<compiler meshdir="d{number}"/>' for number in range(500))
    names = "".join(f'<mesh file="m{number}"/>' for number in range(500))
    assert "names 500 files in 501 directories" in refused_robot(f"<mujoco>{directories}{names}</mujoco>")


def test_a_robot_whose_short_file_asks_for_too_much_time_and_memory_is_refused(refused_robot):
    levels = 15
    doubled = '<replicate count="2" offset="1 0 0">' * levels + '<geom size=".1"/>' + "</replicate>" * levels
    greedy = MJCF.replace("</mujoco>", f"<worldbody>{doubled}</worldbody></mujoco>")
    assert "give the robot fewer replicas" in refused_robot(greedy)
