"""``verify`` and ``replay`` where what ran is not there any more, but something else under its name."""

import json
import re
import shutil
from pathlib import Path

import h5py
import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import evaluated, job

pytestmark = pytest.mark.usefixtures("quick_python")

MODEL = Path(__file__).parents[2] / "models" / "cartpole"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(MODEL, directory / "training")
    played = job(
        "cartpole", "rsl_rl", 2, num_envs=1, name="pole", options={"checkpoint_path": str(directory / "training")}
    )
    evaluated(directory / "out", played)
    return directory


def test_verify_says_that_another_configuration_of_the_policy_ran_and_blames_nothing_else(finished, capsys):
    agent = finished / "training" / "params" / "agent.yaml"
    before = agent.read_text()
    agent.write_text(re.sub(r"(?m)^clip_actions:.*$", "clip_actions: 0.001", before))
    assert agent.read_text() != before
    arguments = ["verify", str(finished / "out"), "--sample", "1", "--nproc", "1", "--num_envs", "1"]
    try:
        assert main(arguments) == 1
    finally:
        agent.write_text(before)
    told = capsys.readouterr().out
    assert told.count("job 'pole' has changed since the run: agent_cfg_path agent.yaml was ") == 1
    assert "expected" not in told
    assert "'pole' changed since the run, so the sample says nothing about its episodes" in told
    assert main(arguments) == 0
    assert "has changed since the run" not in capsys.readouterr().out


def test_replay_says_that_the_robot_is_another_one(finished, tmp_path, capsys):
    dataset = Path(shutil.copy(finished / "out" / "pole" / "dataset_pole.hdf5", tmp_path))
    assert main(["replay", str(dataset)]) == 0
    assert "has changed since the recording" not in capsys.readouterr().out
    with h5py.File(dataset, "r+") as file:
        for index in range(2):
            attributes = file[f"data/demo_{index}"].attrs
            contents = json.loads(str(attributes["contents"]))
            attributes["contents"] = json.dumps({**contents, "environment": {"robot arm.xml": "1" * 64}})
    assert main(["replay", str(dataset)]) == 0
    line = "the environment has changed since the recording: robot arm.xml was 111111111111, is now not there"
    assert capsys.readouterr().out.count(line) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"policy": 3}'])
def test_contents_that_cannot_be_read_are_not_known(finished, tmp_path, capsys, content):
    dataset = Path(shutil.copy(finished / "out" / "pole" / "dataset_pole.hdf5", tmp_path))
    with h5py.File(dataset, "r+") as file:
        file["data/demo_0"].attrs["contents"] = content
    assert main(["replay", str(dataset), "--episodes", "0"]) == 0
    assert "has changed since the recording" not in capsys.readouterr().out
