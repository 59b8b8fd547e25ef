"""A policy of LeRobot comes to the same tables on any number of ranks, and after an interruption."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import end, job, launched, patience_s, run_of, same_tables, start, wait_until
from tests.policy.lerobot.policies import PICTURE, STATE, options_for, saved

pytestmark = pytest.mark.slow
ON_CPU = ("--device", "cpu")


def playing(directory: Path, **keys: Any) -> dict:
    features = {PICTURE: {"type": "VISUAL", "shape": [3, 32, 32]}, STATE: {"type": "STATE", "shape": [7]}}
    action = {"action": {"type": "ACTION", "shape": [8]}}
    policy = saved(directory / "policy", "diffusion", n_obs_steps=2, input_features=features, output_features=action)
    options = options_for(policy, images={PICTURE: "wrist_cam_rgb"}, states={STATE: ["robot_joint_pos"]})
    args = {"enable_cameras": True, "camera_size": 32}
    return job("reach", "lerobot", 4, args=args, options=options, **keys)


def test_the_tables_are_the_same_on_ranks_that_share_a_server_or_none_and_after_a_run_was_killed(tmp_path):
    alone, split = launched(tmp_path / "alone", playing(tmp_path), options=ON_CPU), (*ON_CPU, "--split_jobs")
    for ranks, keys in ((1, {"shared": "node"}), (3, {"shared": "node"}), (2, None)):
        playing_there = playing(tmp_path, **({} if keys is None else {"policy_server": keys}))
        assert same_tables(alone, launched(tmp_path / f"on_{ranks}", playing_there, options=split, ranks=ranks))
    killed = tmp_path / "killed"
    process = start(run_of(killed, playing(tmp_path), options=ON_CPU), tmp_path / "log", fresh=True)
    wait_until(lambda: any(killed.glob("a/episodes/*.h5")), timeout_s=patience_s(60))
    end(process)
    assert not (killed / "results.csv").exists()
    assert same_tables(alone, launched(killed, options=(*ON_CPU, "--resume")))
