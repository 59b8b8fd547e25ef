"""Small recordings of a Panda whose joints move evenly, so that a model can learn what comes next."""

from pathlib import Path

import numpy as np
import yaml

from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena_gr00t.training.finetune import PANDA_CONFIG

SIZE = 16
INSTRUCTIONS = ("lift the cube", "lower the cube")


def recording(index: int, *, success: bool = True, **attributes) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    length = 6 + index % 3
    joints = (generator.uniform(-1, 1, 7) + 0.05 * np.arange(length)[:, None]).astype(np.float32)
    pictures = generator.integers(0, 255, (2, length, SIZE, SIZE, 3), np.uint8)
    return RecordedEpisode(
        episode_index=index,
        arrays={
            "actions": np.concatenate([joints + np.float32(0.05), np.full((length, 1), 0.08, np.float32)], axis=1),
            "obs/robot_joint_pos": joints,
            "obs/gripper_pos": np.full((length, 2), 0.04, np.float32),
            "obs/cube_pos": generator.random((length, 3)).astype(np.float32),
            "camera_obs/robot_head_cam_rgb": pictures[0],
            "camera_obs/wrist_cam_rgb": pictures[1],
        },
        attributes={
            "job": "lift",
            "success": success,
            "language_instruction": INSTRUCTIONS[index % 2],
            "control_dt": 0.05,
            **attributes,
        },
        env_args={"env_name": "lift_object"},
    )


def write_recordings(directory: Path, *episodes: RecordedEpisode) -> Path:
    """Write episodes into the directory of a job, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    for episode in episodes:
        hdf5.write_episode(directory / episode_file_name(episode.episode_index), episode)
    return directory


def write_config(path: Path, **changes) -> Path:
    """Write the Panda's policy file for small pictures and a short horizon, and return its path."""
    document = yaml.safe_load(PANDA_CONFIG.read_text())
    for key in ("policy_joints_config_path", "state_joints_config_path", "action_joints_config_path"):
        document[key] = str(PANDA_CONFIG.parent / document[key])
    document |= {"action_horizon": 4, "action_chunk_length": 4, "target_image_size": [32, 32, 3], **changes}
    path.write_text(yaml.safe_dump(document))
    return path
