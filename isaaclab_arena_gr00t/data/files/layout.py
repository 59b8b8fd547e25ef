"""Define the paths and JSON documents of a LeRobot dataset, in both versions. Pure functions.

Version 2.1 has a table and a video per episode; GR00T's finetuning reads it, together with ``modality.json``. Version
3.0 puts many episodes into one file. Two further files of this program hold what LeRobot has no place for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

INFO_FILE = "meta/info.json"
STATS_FILE = "meta/stats.json"
MODALITY_FILE = "meta/modality.json"
ARENA_FILE = "meta/arena.json"
ARENA_EPISODES_FILE = "meta/arena_episodes.jsonl"
TASKS_LINES_FILE = "meta/tasks.jsonl"
EPISODES_LINES_FILE = "meta/episodes.jsonl"
EPISODES_STATS_FILE = "meta/episodes_stats.jsonl"
TASKS_TABLE_FILE = "meta/tasks.parquet"
EPISODES_TABLE_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

MEGABYTE = 1 << 20
ARENA_SCHEMA_VERSION = 1
"""Of `ARENA_FILE` and `ARENA_EPISODES_FILE`."""

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
ACTION = "action"
ACTIONS = "actions"
REWARD = "next.reward"
DONE = "next.done"
SUCCESS = "next.success"
PICTURES_PREFIX = "observation.images."
ANNOTATION = "annotation.human.task_description"
TASK_INDEX = "task_index"
TIMESTAMP = "timestamp"
FRAME_INDEX = "frame_index"
EPISODE_INDEX = "episode_index"
INDEX = "index"


class DatasetVersion(StrEnum):
    """A version of the layout that is written: ``V21`` for GR00T, ``V30`` for LeRobot itself."""

    V21 = "v2.1"
    V30 = "v3.0"


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """Largest sizes of the files and directories of a dataset.

    Attributes:
        chunk: Largest number of files in a directory ``chunk-000``.
        data_mb: Size at which the next table begins a new file, version 3.0 [MiB].
        video_mb: Size at which the next pictures begin a new file, version 3.0 [MiB].
    """

    chunk: int = 1000
    data_mb: int = 100
    video_mb: int = 200


DATA_PATHS = {
    DatasetVersion.V21: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    DatasetVersion.V30: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATHS = {
    DatasetVersion.V21: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    DatasetVersion.V30: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


def of_episode(template: str, episode_index: int, sizes: FileSizes, video_key: str = "") -> str:
    """Return the path of an episode's own file, version 2.1."""
    chunk = episode_index // sizes.chunk
    return template.format(episode_chunk=chunk, episode_index=episode_index, video_key=video_key)


def of_number(template: str, number: int, sizes: FileSizes, video_key: str = "") -> str:
    """Return the path of the n-th file, counted over all chunks, version 3.0."""
    chunk, file = divmod(number, sizes.chunk)
    return template.format(chunk_index=chunk, file_index=file, video_key=video_key)


def info_document(
    version: DatasetVersion,
    features: Mapping[str, Any],
    *,
    fps: int,
    robot_type: str,
    sizes: FileSizes,
    num_episodes: int,
    num_frames: int,
    num_tasks: int,
) -> dict[str, Any]:
    """Return the content of ``info.json``.

    Args:
        version: The version of the layout.
        features: Description of each column; see `DatasetFeatures.described`.
        fps: Control steps per second.
        robot_type: What the robot is called.
        sizes: How much goes into a file.
        num_episodes: Number of episodes.
        num_frames: Number of control steps.
        num_tasks: Number of instructions.
    """
    num_videos = sum(feature["dtype"] == "video" for feature in features.values())
    return {
        "codebase_version": str(version),
        "robot_type": robot_type,
        "total_episodes": num_episodes,
        "total_frames": num_frames,
        "total_tasks": num_tasks,
        "chunks_size": sizes.chunk,
        **_files(version, sizes, num_episodes=num_episodes, num_videos=num_videos),
        "fps": fps,
        "splits": {"train": f"0:{num_episodes}"},
        "data_path": DATA_PATHS[version],
        "video_path": VIDEO_PATHS[version] if num_videos else None,
        "features": dict(features),
    }


def _files(version: DatasetVersion, sizes: FileSizes, *, num_episodes: int, num_videos: int) -> dict[str, int]:
    if version is DatasetVersion.V21:
        return {"total_videos": num_videos * num_episodes, "total_chunks": -(-num_episodes // sizes.chunk)}
    return {"data_files_size_in_mb": sizes.data_mb, "video_files_size_in_mb": sizes.video_mb}
