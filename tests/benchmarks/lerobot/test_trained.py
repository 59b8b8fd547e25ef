import json

import numpy as np

from benchmarks.lerobot.trained import shown_in, trained_for
from isaaclab_arena.interfaces.episode import MAX_SEED, Episode
from tests.gr00t.data.recordings import record, recorded_episode


def test_lerobots_loop_is_shown_what_the_policy_saw_and_the_seeds_of_its_noise(tmp_path):
    shown = shown_in(record(tmp_path, "act", [5, 4]), "act", index=1, seed=7)
    source = recorded_episode(1, 4, "act").arrays
    assert np.array_equal(shown["state"][:, :7], source["obs/robot_joint_pos"])
    assert np.array_equal(shown["state"][:, 7:], source["obs/gripper_pos"])
    assert np.array_equal(shown["wrist_cam_rgb"], source["camera_obs/wrist_cam_rgb"])
    stream = Episode(job="act", episode_index=1, seed=7).policy_generator()
    assert shown["seeds"].tolist() == [stream.integers(MAX_SEED, endpoint=True) for _ in range(4)]


def test_a_training_that_was_stopped_is_known_by_the_steps_that_it_took(tmp_path):
    step = tmp_path / "checkpoints" / "005000"
    for name, document in {
        "pretrained_model/train_config.json": {"steps": 6000, "batch_size": 16},
        "training_state/training_step.json": {"step": 5000},
    }.items():
        (step / name).parent.mkdir(parents=True)
        (step / name).write_text(json.dumps(document))
    (tmp_path / "checkpoints" / "last").symlink_to("005000")
    assert trained_for(tmp_path) == "5,000 of 6,000 steps, batches of 16"
