"""Benchmarks beside LeRobot."""

import json

import numpy as np

from benchmarks.lerobot.pusht_side_by_side import Episodes, furthest_apart, our_episodes, outcomes_apart, their_episodes
from benchmarks.lerobot.trained import shown_in
from isaaclab_arena.interfaces.episode import MAX_SEED, Episode
from tests.gr00t.data.recordings import record, recorded_episode


def test_episodes_of_both_programs_are_compared_one_by_one(tmp_path):
    metrics = {"sum_rewards": [0.0, 4.5, 18.0], "successes": [False, True, True], "max_rewards": []}
    theirs = {"per_task": [{"task_group": "pusht", "metrics": metrics}]}
    (tmp_path / "eval_info.json").write_text(json.dumps(theirs))
    # A run lists its episodes in the order in which they ended.
    lines = ("pusht,2,18.0,True", "pusht,0,0.0,False", "pusht,1,4.25,False")
    (tmp_path / "episodes.csv").write_text("\n".join(["job,episode_index,return,success", *lines, ""]))
    ours = our_episodes(tmp_path)
    assert ours == Episodes(returns=[0.0, 4.25, 18.0], successes=[False, False, True])
    assert furthest_apart(ours.returns, their_episodes(tmp_path).returns) == 0.25
    assert outcomes_apart(ours, their_episodes(tmp_path)) == 1


def test_lerobots_loop_is_shown_what_the_policy_saw_and_the_seeds_of_its_noise(tmp_path):
    shown = shown_in(record(tmp_path, "act", [5, 4]), "act", index=1, seed=7)
    source = recorded_episode(1, 4, "act").arrays
    assert np.array_equal(shown["state"][:, :7], source["obs/robot_joint_pos"])
    assert np.array_equal(shown["state"][:, 7:], source["obs/gripper_pos"])
    assert np.array_equal(shown["wrist_cam_rgb"], source["camera_obs/wrist_cam_rgb"])
    stream = Episode(job="act", episode_index=1, seed=7).policy_generator()
    assert shown["seeds"].tolist() == [stream.integers(MAX_SEED, endpoint=True) for _ in range(4)]
