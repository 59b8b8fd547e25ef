"""Episodes to write, each different from the others, and what is known of them when they end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.layout import episode_file_name


def recorded(index: int, *, length: int = 5, **attributes) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    return RecordedEpisode(
        episode_index=index,
        arrays={
            "actions": generator.random((length, 4)).astype(np.float32),
            "states/articulation/robot/joint_position": generator.random((length, 7)),
            "camera_obs/front": generator.integers(0, 255, (length, 6, 6, 3), np.uint8),
            "dones": np.zeros(length, np.uint8),
            "nothing": np.zeros((length, 0), np.float32),
        },
        attributes={"job": "lift", "success": index % 2 == 0, "seed": 2**62 + index, **attributes},
        env_args={"env_name": "lift", "type": 2},
    )


def write_parts(directory, indices):
    parts = [directory / episode_file_name(index) for index in indices]
    for index, part in zip(indices, parts, strict=True):
        hdf5.write_episode(part, recorded(index, length=3 + index))
    return parts


def write_arrays(run: Path, job: str, index: int, arrays: Mapping[str, np.ndarray], /, **attributes: Any) -> None:
    """Write the file of an episode into a run."""
    episode = RecordedEpisode(episode_index=index, arrays=dict(arrays), attributes=attributes, env_args={})
    hdf5.write_episode(run / job / "episodes" / episode_file_name(index), episode)


def ended(index: int, *, job: str = "lift", outcome: Outcome = Outcome.SUCCESS, **changes: Any) -> EpisodeRecord:
    success = None if outcome is Outcome.ERROR else outcome is Outcome.SUCCESS
    said: dict[str, Any] = {"env_id": 0, "success": success, "episode_return": 1.5, "termination": "terminated"}
    said |= {"conditions": {}, "language_instruction": "lift"}
    episode = Episode(job=job, episode_index=index, seed=3)
    return EpisodeRecord(episode=episode, outcome=outcome, **{**said, **changes})
