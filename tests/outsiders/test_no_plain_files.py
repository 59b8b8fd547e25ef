"""Where a file is named and a pipe, a device or a directory lies, it is refused, and nothing opens it and waits."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isaaclab_arena.cli.main import main
from tests.end_to_end.mistakes import in_environment, mistaken
from tests.environments.six_axis import DESCRIPTION
from tests.gr00t.fakes import write_policy_yaml


@pytest.fixture(autouse=True)
def _nothing_waits():
    """A pipe that is opened waits for ever; then this test fails instead."""

    def fail(*_) -> None:
        raise TimeoutError("something was opened that never ends")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def problems(capsys) -> Callable[[Path], list[dict[str, Any]]]:
    """Return what `validate` finds in a job file, which is something."""

    def problems(path: Path) -> list[dict[str, Any]]:
        assert main(["validate", "--json", str(path)]) == 2
        return json.loads(capsys.readouterr().out)["problems"]

    return problems


@pytest.fixture
def refusal(problems, tmp_path_factory) -> Callable[[dict], str]:
    """Return what a job file of one job is refused with before anything starts."""
    path = tmp_path_factory.mktemp("asked") / "jobs.json"

    def refusal(jobs: dict) -> str:
        path.write_text(json.dumps(jobs))
        found = problems(path)
        assert {(problem["file"], problem["job"]) for problem in found} == {(str(path), "good")}
        return "\n".join(f"{problem['key']}: {problem['message']}" for problem in found)

    return refusal


@pytest.fixture
def described(tmp_path) -> Callable[[str], str]:
    """Return the path of the description of a robot that a given MJCF file holds."""

    def described(mjcf: str) -> str:
        path = tmp_path / "robot.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(DESCRIPTION), "mjcf": mjcf}))
        return str(path)

    return described


@pytest.fixture(params=["a pipe", "a device", "a directory"])
def no_file(request, pipe) -> tuple[Path, str]:
    return {"a pipe": pipe, "a device": Path("/dev/zero"), "a directory": pipe.parent}[request.param], request.param


def test_a_job_file_that_is_a_pipe_or_a_device_is_refused(no_file, problems):
    path, kind = no_file
    (problem,) = problems(path)
    assert problem["file"] == str(path)
    assert f"is {kind}, not a file" in problem["message"]


def test_a_yaml_file_that_is_a_pipe_or_a_device_is_refused(no_file, refusal):
    path, kind = no_file
    message = refusal(
        mistaken(policy_type="gr00t_closedloop", policy_config_dict={"policy_config_yaml_path": str(path)})
    )
    assert message.startswith(f"policy_config_dict.policy_config_yaml_path: {path}: is {kind}, not a file")


@pytest.mark.parametrize("key", ["policy_joints_config_path", "state_joints_config_path"])
def test_what_a_yaml_file_names_that_is_a_pipe_or_a_device_is_refused(no_file, refusal, tmp_path, key):
    path, kind = no_file
    options = {"policy_config_yaml_path": write_policy_yaml(tmp_path, model_path="owner/name", **{key: str(path)})}
    message = refusal(mistaken(policy_type="gr00t_closedloop", policy_config_dict=options))
    assert f"{key}: '{path}' is {kind}, not a file" in message


def test_saved_conditions_that_are_a_pipe_are_refused_before_anything_starts(pipe, refusal):
    message = refusal(mistaken(conditions=str(pipe)))
    assert message.startswith("conditions: ")
    assert "is a pipe" in message


@pytest.mark.parametrize("key", ["checkpoint_path", "agent_cfg_path"])
def test_a_checkpoint_or_its_yaml_that_is_a_pipe_is_refused_before_anything_starts(pipe, key, tmp_path, refusal):
    (tmp_path / "model_1.pt").write_bytes(b"")
    options = {"checkpoint_path": str(tmp_path / "model_1.pt"), key: str(pipe)}
    message = refusal(mistaken(policy_type="rsl_rl", policy_config_dict=options))
    assert f"policy_config_dict.{key}" in message
    assert "is a pipe" in message


def test_a_checkpoint_that_is_a_pipe_in_the_directory_of_a_training_is_refused(tmp_path, refusal):
    os.mkfifo(tmp_path / "model_7.pt")
    options = {"checkpoint_path": str(tmp_path)}
    assert "model_7.pt': is a pipe" in refusal(mistaken(policy_type="rsl_rl", policy_config_dict=options))


@pytest.mark.parametrize("name", ["dataset.hdf5", "e000000.h5"])
def test_a_recording_that_is_a_pipe_is_refused_before_anything_starts(tmp_path, name, refusal):
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name, tmp_path / "*5"):
        options = {"replay_file_path": str(path)}
        message = refusal(mistaken(policy_type="replay", policy_config_dict=options))
        assert "policy_config_dict.replay_file_path" in message
        assert f"{name}': is a pipe" in message


@pytest.mark.parametrize("path", ["", "nul\0", "x" * 5000, "~nobody-of-that-name/x", "**/*.nothing", "/", "..."])
def test_a_recording_with_an_impossible_name_is_a_mistake(path, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert "replay_file_path" in refusal(mistaken(policy_type="replay", policy_config_dict={"replay_file_path": path}))


@pytest.mark.parametrize(
    "names",
    [
        '<asset><mesh name="m" file="pipe"/></asset>',
        '<asset><texture name="t" type="2d" file="pipe"/></asset>',
        '<asset><hfield name="h" file="pipe" size="1 1 1 1"/></asset>',
        '<include file="pipe"/>',
    ],
)
def test_a_pipe_that_an_mjcf_file_names_is_refused(pipe, names, refusal, described):
    (pipe.parent / "robot.xml").write_text(f"<mujoco>{names}</mujoco>")
    message = refusal(in_environment(embodiment=described("robot.xml")))
    assert "mjcf: " in message
    assert f"{pipe}: is a pipe" in message


def test_a_robot_whose_mjcf_file_is_a_pipe_is_refused(pipe, refusal, described):
    message = refusal(in_environment(embodiment=described(pipe.name)))
    assert f"mjcf: '{pipe}': is a pipe" in message


def test_too_many_names_in_too_many_directories_are_refused_and_not_looked_for(tmp_path, refusal, described):
    directories = "".join(f'<compiler meshdir="d{number}"/>' for number in range(500))
    names = "".join(f'<mesh file="m{number}"/>' for number in range(500))
    (tmp_path / "robot.xml").write_text(f"<mujoco>{directories}{names}</mujoco>")
    assert "names 500 files in 501 directories" in refusal(in_environment(embodiment=described("robot.xml")))


def test_weights_of_a_model_that_are_a_pipe_are_refused(tmp_path, refusal):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({}))
    os.mkfifo(model / "model.safetensors")
    options = {"policy_config_yaml_path": write_policy_yaml(tmp_path, model_path=str(model))}
    message = refusal(mistaken(policy_type="gr00t_closedloop", policy_config_dict=options))
    assert f"model_path: '{model}' cannot be loaded: model.safetensors is a pipe" in message
