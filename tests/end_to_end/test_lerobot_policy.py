"""A policy of LeRobot comes to the same tables on any number of ranks, and after an interruption."""

from pathlib import Path

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, start, wait_until, write_jobs
from tests.policy.lerobot.policies import PICTURE, STATE, options_for, saved


def arguments(output: Path, server: dict[str, str] | None = None) -> list[str]:
    features = {PICTURE: {"type": "VISUAL", "shape": [3, 32, 32]}, STATE: {"type": "STATE", "shape": [7]}}
    action = {"action": {"type": "ACTION", "shape": [8]}}
    policy = saved(
        output.parent / "policy", "diffusion", n_obs_steps=2, input_features=features, output_features=action
    )
    job = {
        "name": "a",
        "arena_env_args": {"environment": "reach", "num_envs": 2, "enable_cameras": True, "camera_size": 32},
        "policy_type": "lerobot",
        "policy_config_dict": options_for(
            policy, images={PICTURE: "wrist_cam_rgb"}, states={STATE: ["robot_joint_pos"]}
        ),
        "num_episodes": 4,
        **({} if server is None else {"policy_server": server}),
    }
    path = write_jobs(output.parent / f"{output.name}.json", [job])
    return ["--eval_jobs_config", str(path), "--output_dir", str(output), "--device", "cpu"]


def finished(output: Path, *options: str, ranks: int = 1, server: dict[str, str] | None = None) -> Path:
    done = run(command(*arguments(output, server), *options, ranks=ranks), timeout_s=patience_s(120))
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.slow
def test_the_tables_are_the_same_on_ranks_that_share_a_server(tmp_path):
    alone = finished(tmp_path / "alone")
    for ranks in (1, 3):
        shared = tmp_path / f"on_{ranks}"
        assert same_tables(alone, finished(shared, "--split_jobs", ranks=ranks, server={"shared": "node"}))


@pytest.mark.slow
def test_the_tables_are_the_same_on_two_ranks_and_after_a_run_was_killed(tmp_path):
    alone = finished(tmp_path / "alone")
    assert same_tables(alone, finished(tmp_path / "shared", "--split_jobs", ranks=2))
    process = start(command(*arguments(tmp_path / "killed")), tmp_path / "log", fresh=True)
    wait_until(lambda: any((tmp_path / "killed").glob("a/episodes/*.h5")), timeout_s=patience_s(60))
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "results.csv").exists()
    assert same_tables(alone, finished(tmp_path / "killed", "--resume"))
