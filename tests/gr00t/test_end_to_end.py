"""A GR00T model drives the Panda, from pictures and joints, through the program as a user starts it."""

import json
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.evaluation import eval_runner, policy_runner
from tests.end_to_end.launching import episodes_table, jobs_table, write_jobs
from tests.gr00t.panda_checkpoint import POLICY, save_panda_checkpoint, write_panda_yaml


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a checkpoint of random weights."""
    folder = tmp_path_factory.mktemp("gr00t")
    save_panda_checkpoint(folder / "checkpoint")
    return folder


def evaluate(folder: Path, output: Path, num_envs: int = 2, num_episodes: int = 2) -> int:
    yaml = write_panda_yaml(folder / "panda.yaml")
    return policy_runner.main(
        [
            *(
                "--policy_type",
                POLICY,
                "--num_episodes",
                str(num_episodes),
                "--num_envs",
                str(num_envs),
                "--device",
                "cpu",
            ),
            *("--output_dir", str(output), "--enable_cameras"),
            *("reach", "--camera_size", "64", "--policy_config_yaml_path", yaml),
        ]
    )


@pytest.fixture(scope="module")
def evaluated(folder) -> Path:
    assert evaluate(folder, folder / "two") == 0
    return folder / "two"


def test_a_model_plays_its_episodes_to_the_end(evaluated):
    [row] = jobs_table(evaluated).to_dict("records")
    assert (row["status"], row["episodes"], row["planned"]) == ("completed", 2, 2)
    assert row["reproducible"] == "bitwise"
    assert min(episodes_table(evaluated)["length"]) > 10


def test_the_log_says_where_the_model_ran_and_what_asking_row_by_row_has_saved(evaluated):
    log = (evaluated / "logs" / "rank0.log").read_text()
    assert "checkpoint runs on cpu" in log
    # Both episodes last 120 steps in chunks of 5, and queries on a CPU have 4 rows.
    assert "gr00t_closedloop: 24 queries for 48 rows, 96 with those that fill up; all rows each time" in log


def test_an_episode_is_the_same_bits_alone(folder, evaluated):
    assert evaluate(folder, folder / "one", num_envs=1, num_episodes=1) == 0
    checksums = [list(episodes_table(output)["checksum"]) for output in (folder / "one", evaluated)]
    assert checksums[0] == checksums[1][:1]
    assert len(set(checksums[1])) == 2


def job(name: str, yaml: str, **changes: Any) -> dict[str, Any]:
    arguments = {"environment": "reach", "enable_cameras": True, "camera_size": 64, **changes}
    options = {"policy_config_yaml_path": yaml}
    return {
        "name": name,
        "arena_env_args": arguments,
        "policy_type": POLICY,
        "policy_config_dict": options,
        "num_steps": 6,
    }


def test_jobs_that_do_not_fit_fail_before_the_first_step_and_the_others_run(folder, tmp_path):
    good = write_panda_yaml(folder / "good.yaml")
    other_tag = write_panda_yaml(folder / "tag.yaml", embodiment_tag="GR1")
    camera = write_panda_yaml(folder / "camera.yaml", pov_cam_name_sim={"head": "top_rgb", "wrist": "wrist_cam_rgb"})
    jobs = [
        job("wrong-tag", other_tag),
        job("wrong-camera", camera),
        job("wrong-action", good, action_mode="ee_delta"),
        job("wrong-robot", good, embodiment="so101"),
        job("blind", good, enable_cameras=False),
        job("good", good),
    ]
    path = write_jobs(tmp_path / "jobs.json", jobs)
    output = tmp_path / "out"
    assert eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(output), "--device", "cpu"]) == 1
    rows = jobs_table(output).set_index("name").to_dict("index")
    assert {name for name, row in rows.items() if row["status"] == "completed"} == {"good"}
    for name, message in {
        "wrong-tag": "tag.yaml: model_path: the model in",
        "wrong-camera": "camera.yaml: pov_cam_name_sim: the environment has no camera 'top_rgb'",
        "wrong-action": "good.yaml: policy_joints_config_path: action group 'arm': there is no joint 'panda_joint1'",
        "wrong-robot": "good.yaml: policy_joints_config_path: state group 'arm': there is no joint 'panda_joint1'",
        "blind": "the environment shows no pictures, the policy needs 'robot_head_cam_rgb'; set enable_cameras",
    }.items():
        assert message in str(rows[name]["error"])
        report = json.loads((output / name / "job_report_rank0.json").read_text())
        assert report["env_steps"] == 0
