"""A run of two jobs with cameras, recorded without a simulation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import EPISODES_DIRECTORY, episode_file_name

HEIGHT, WIDTH = 32, 48
PANDA_YAML = Path("isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml").resolve()


def picture_series(seed: int, length: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Return a red square that moves over a shaded table. Shape: (length, height, width, 3)."""
    y, x = np.mgrid[:height, :width]
    frames = np.empty((length, height, width, 3), np.uint8)
    for step in range(length):
        frames[step] = (80 + y + x + seed)[..., None] % 200
        top, left = (seed + step) % (height - 8), (2 * step) % (width - 8)
        frames[step, top : top + 8, left : left + 8] = (220, 30, 20)
    return frames


def recorded_episode(index: int, length: int, job: str, **more: Any) -> RecordedEpisode:
    generator = np.random.default_rng([index, len(job)])
    vectors = {"robot_joint_pos": 7, "gripper_pos": 2, "cube_pos": 3}
    arrays = {f"obs/{name}": generator.normal(size=(length, size)).astype(np.float32) for name, size in vectors.items()}
    for number, camera in enumerate(("robot_head_cam_rgb", "wrist_cam_rgb")):
        arrays[f"camera_obs/{camera}"] = picture_series(index + number, length)
    arrays["camera_obs/wrist_cam_depth"] = np.ones((length, HEIGHT, WIDTH, 1), np.float32)
    arrays["actions"] = generator.normal(size=(length, 8)).astype(np.float32)
    arrays["rewards"] = generator.normal(size=length).astype(np.float32)
    arrays["dones"] = (np.arange(length) == length - 1).astype(np.uint8)
    attributes = {
        "job": job,
        "seed": 3,
        "episode_index": index,
        "control_dt": 0.05,
        "success": index % 2 == 0,
        "language_instruction": f"{job} the cube",
        "provenance": '{"embodiment": "panda"}',
        **more.pop("attributes", {}),
    }
    return RecordedEpisode(
        episode_index=index,
        arrays={name: array for name, array in (arrays | more).items() if array is not None},
        attributes={name: value for name, value in attributes.items() if value is not None},
        env_args={"env_name": job},
    )


def record(directory: Path, job: str, lengths: Sequence[int], **more: Any) -> Path:
    """Write a job's dataset and return it."""
    parts = []
    for index, length in enumerate(lengths):
        parts.append(directory / EPISODES_DIRECTORY / episode_file_name(index))
        write_episode(parts[-1], recorded_episode(index, length, job, **dict(more)))
    consolidate(parts, directory / f"dataset_{job}.hdf5")
    return directory / f"dataset_{job}.hdf5"


def record_run(directory: Path) -> Path:
    """Write a run of two jobs, of 3 and 2 episodes, and return its directory."""
    record(directory / "lift", "lift", [5, 4, 7])
    record(directory / "push", "push", [3, 6])
    (directory / "logs").mkdir()
    return directory
