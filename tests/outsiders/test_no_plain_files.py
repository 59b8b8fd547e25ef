"""Where a file is named and a pipe, a device or a directory lies, it is refused, and nothing opens it and waits."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from isaaclab_arena import ConfigError
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.loading import load_jobs_file, read_jobs
from isaaclab_arena.environments.robots.described import described_embodiment
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.plain_files import not_a_plain_file
from isaaclab_arena.sim.scene.mjcf_files import file_outside
from isaaclab_arena_gr00t.checkpoints import checkpoint_problems
from isaaclab_arena_gr00t.config import read_policy_config
from isaaclab_arena_gr00t.joint_files import read_joint_order
from tests.end_to_end.mistakes import mistaken

ROBOTS = Path(__file__).parents[2] / "docs" / "how_to" / "robots.md"


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


def refusal(jobs: dict) -> str:
    """Return what a job file of one job is refused with before anything starts."""
    with pytest.raises(ConfigError) as caught:
        resolve_jobs(read_jobs(jobs, source="jobs.json").jobs, file="jobs.json")
    return str(caught.value)


def test_a_plain_file_is_one_also_through_a_link(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert not_a_plain_file(tmp_path / "file") is None
    assert not_a_plain_file(tmp_path / "link") is None


def test_everything_else_is_named_for_what_it_is(tmp_path, pipe):
    (tmp_path / "link").symlink_to(pipe)
    (tmp_path / "circle").symlink_to("circle")
    assert not_a_plain_file(pipe) == "is a pipe, not a file; save what comes through it as a file"
    assert not_a_plain_file(tmp_path / "link") == not_a_plain_file(pipe)
    assert not_a_plain_file(tmp_path) == "is a directory, not a file"
    assert not_a_plain_file(Path("/dev/zero")) == "is a device, not a file"
    assert not_a_plain_file(tmp_path / "none") == "there is no such file"
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "circle"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "nul\0"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / ("long" * 2000)))


@pytest.mark.parametrize("read", [read_document, load_jobs_file, read_policy_config, read_joint_order])
def test_a_job_file_or_a_yaml_file_that_is_a_pipe_or_a_device_is_refused(pipe, read):
    for path, kind in ((pipe, "a pipe"), (Path("/dev/zero"), "a device"), (pipe.parent, "a directory")):
        with pytest.raises(ConfigError, match=f"is {kind}, not a file") as caught:
            read(path)
        assert caught.value.problems[0].file == str(path)


def test_saved_conditions_that_are_a_pipe_are_refused_before_anything_starts(pipe):
    message = refusal(mistaken(conditions=str(pipe)))
    assert "jobs.json: job 'good': conditions" in message
    assert "is a pipe" in message


@pytest.mark.parametrize("key", ["checkpoint_path", "agent_cfg_path"])
def test_a_checkpoint_or_its_yaml_that_is_a_pipe_is_refused_before_anything_starts(pipe, key, tmp_path):
    (tmp_path / "model_1.pt").write_bytes(b"")
    options = {"checkpoint_path": str(tmp_path / "model_1.pt"), key: str(pipe)}
    message = refusal(mistaken(policy_type="rsl_rl", policy_config_dict=options))
    assert f"policy_config_dict.{key}" in message
    assert "is a pipe" in message


def test_a_checkpoint_that_is_a_pipe_in_the_directory_of_a_training_is_refused(tmp_path):
    os.mkfifo(tmp_path / "model_7.pt")
    options = {"checkpoint_path": str(tmp_path)}
    assert "model_7.pt': is a pipe" in refusal(mistaken(policy_type="rsl_rl", policy_config_dict=options))


@pytest.mark.parametrize("name", ["dataset.hdf5", "e000000.h5"])
def test_a_recording_that_is_a_pipe_is_refused_before_anything_starts(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name, tmp_path / "*5"):
        options = {"replay_file_path": str(path)}
        message = refusal(mistaken(policy_type="replay", policy_config_dict=options))
        assert "policy_config_dict.replay_file_path" in message
        assert f"{name}': is a pipe" in message


@pytest.mark.parametrize("path", ["", "nul\0", "x" * 5000, "~nobody-of-that-name/x", "**/*.nothing", "/", "..."])
def test_a_recording_with_an_impossible_name_is_a_mistake(path, tmp_path, monkeypatch):
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
def test_a_pipe_that_an_mjcf_file_names_is_refused(pipe, names):
    robot = pipe.parent / "robot.xml"
    robot.write_text(f"<mujoco>{names}</mujoco>")
    with pytest.raises(OSError, match="is a pipe") as caught:
        file_outside(robot, pipe.parent)
    assert caught.value.filename == str(pipe)


def test_a_robot_whose_mjcf_file_is_a_pipe_is_refused(tmp_path):
    description = re.findall(r"```yaml\n(.*?)```", ROBOTS.read_text(), re.DOTALL)[0]
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump({**yaml.safe_load(description), "mjcf": "pipe.xml"}))
    os.mkfifo(tmp_path / "pipe.xml")
    with pytest.raises(ConfigError, match="is a pipe") as caught:
        described_embodiment(tmp_path / "robot.yaml")
    assert caught.value.problems[0].key == "mjcf"


def test_too_many_names_in_too_many_directories_are_refused_and_not_looked_for(tmp_path):
    directories = "".join(f'<compiler meshdir="d{number}"/>' for number in range(500))
    names = "".join(f'<mesh file="m{number}"/>' for number in range(500))
    (tmp_path / "robot.xml").write_text(f"<mujoco>{directories}{names}</mujoco>")
    with pytest.raises(OSError, match="names 500 files in 501 directories"):
        file_outside(tmp_path / "robot.xml", tmp_path)


def test_weights_of_a_model_that_are_a_pipe_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    os.mkfifo(tmp_path / "model.safetensors")
    (problem,) = checkpoint_problems(str(tmp_path))
    assert "model.safetensors is a pipe" in problem.message
