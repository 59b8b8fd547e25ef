"""LeRobot itself behind a server of a run for its ranks, and in the document."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.reading import as_arguments, blocks, commands_of
from tests.end_to_end.launching import ROOT, command, patience_s, run, same_tables, write_jobs
from tests.outsiders.test_lerobot_policies import PYTHON, VARIABLES, in_lerobot, make

CAMERA, STATE = "wrist_cam_rgb", "observation.state"
STATES = {STATE: ["robot_joint_pos", "gripper_pos"]}

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="LeRobot's interpreter is missing: make test-benchmarks makes it"),
]


@pytest.fixture(scope="module", params=["act", "diffusion", "smolvla", "act_averaging"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp(request.param) / "policy")


def job(policy: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "lift",
        "arena_env_args": {"environment": "lift_object", "num_envs": 2, "enable_cameras": True, "camera_size": 64},
        "policy_type": "lerobot",
        "policy_config_dict": {
            "pretrained": str(policy),
            "python": PYTHON,
            "environment_variables": VARIABLES,
            "states": STATES,
        },
        "num_episodes": 3,
        **changes,
    }


def test_ranks_on_one_server_come_to_the_tables_of_one_without(policy, tmp_path):
    def finished(name: str, ranks: int, **changes: Any) -> Path:
        file = write_jobs(tmp_path / f"{name}.json", [job(policy, **changes)])
        options = ("--eval_jobs_config", file, "--device", "cpu", "--split_jobs", "--output_dir", tmp_path / name)
        done = run(command(*options, ranks=ranks), timeout_s=patience_s(300))
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    alone = finished("alone", 1)
    for ranks in (1, 2, 3):
        assert same_tables(alone, finished(f"on_{ranks}", ranks, policy_server={"shared": "node"})), ranks


def test_the_commands_of_the_document_run(tmp_path):
    document = (ROOT / "docs" / "bring_your_policy" / "lerobot.md").read_text()
    (tmp_path / "lerobot" / "bin").mkdir(parents=True)
    # A link would be the interpreter that LeRobot's was made from.
    interpreter = tmp_path / "lerobot" / "bin" / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    interpreter.chmod(0o755)
    in_lerobot("make", "act", tmp_path / "outputs" / "train" / "act")
    (job_file,) = blocks(document, "yaml")
    # The name of its picture, and fewer episodes.
    shown = job_file.replace("observation.images.wrist:", f"observation.images.{CAMERA}:")
    (tmp_path / "lerobot.yaml").write_text(shown.replace("num_episodes: 20", "num_episodes: 2"))
    for line in commands_of(document):
        if line.startswith("isaaclab-arena"):
            variables = {**VARIABLES, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
            done = run(as_arguments(line), timeout_s=patience_s(300), directory=tmp_path, extra=variables)
            assert done.returncode == 0, done.stderr
    assert "completed" in (tmp_path / "outputs" / "act" / "results.csv").read_text()
