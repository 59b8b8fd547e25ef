"""From a LeRobot dataset to a recording, which everything that reads recordings takes, one episode at a time."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena.storage.consolidation import consolidate
from isaaclab_arena.storage.hdf5 import write_episode
from isaaclab_arena.storage.recorded_episode import AttributeValue, RecordedEpisode
from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.features import DatasetFeatures
from isaaclab_arena_gr00t.data.stored_dataset import StoredDataset, open_dataset
from isaaclab_arena_gr00t.data.stored_features import stored_features, video_feature


def write_recording(dataset: Path, output_dir: Path, told: Callable[[int, int], None] = lambda *_: None) -> Path:
    """Make a recording of a LeRobot dataset.

    Args:
        dataset: Folder of the dataset.
        output_dir: Folder of the recording; missing or empty.
        told: Called after each episode with how many are done and how many there are.

    Returns:
        The recording. Until it is there, the episodes lie in files of their own beside it.

    Raises:
        ConfigError: If ``output_dir`` is not empty, or a file of the dataset is no JSON.
        StorageError: If the dataset cannot be read or the recording cannot be written.
    """
    stored = open_dataset(dataset)
    features = stored_features(stored)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        message = f"'{output_dir}' is not empty; name a folder that is, or remove it"
        raise ConfigError(Problem(message, key="--output_dir"))
    remembered = _remembered(stored)
    folder = output_dir / recorded.EPISODES_FOLDER
    parts = []
    for index in stored.episodes:
        about = remembered.get(index, {})
        part = folder / recorded.episode_file_name(index)
        write_episode(part, _episode(stored, features, index, about))
        parts.append(part)
        told(len(parts), len(stored.episodes))
    target = output_dir / recorded.dataset_file_name(dataset.resolve().name, 0, 1)
    made = consolidate(parts, target)
    if made.damaged:
        raise StorageError(made.damaged[0][1])
    folder.rmdir()
    return target


def _remembered(stored: StoredDataset) -> dict[int, dict[str, Any]]:
    """Return what the recording said of each episode, where the dataset was made of a recording."""
    found = {}
    for line in stored.lines(layout.ARENA_EPISODES_FILE):
        about = {key: value for key, value in line.items() if isinstance(value, dict)}
        if isinstance(line.get("episode_index"), int):
            found[line["episode_index"]] = about
    return found


def _episode(
    stored: StoredDataset, features: DatasetFeatures, index: int, about: Mapping[str, dict[str, Any]]
) -> RecordedEpisode:
    names = [*features.vectors, *([layout.REWARD] if features.rewards else [])]
    columns = stored.columns(index, names)
    arrays: dict[str, np.ndarray] = {}
    for name, column in features.vectors.items():
        arrays |= column.unpacked(columns[name])
        for key in column.incomplete_groups():
            start, end = column.spans()[key]
            arrays[f"{recorded.OBSERVATIONS}/{key}"] = np.ascontiguousarray(columns[name][:, start:end])
    if features.rewards:
        arrays[recorded.REWARDS] = columns[layout.REWARD][:, 0]
    for key, camera in features.cameras.items():
        feature = video_feature(stored, key)
        frames = [frame[: camera.height, : camera.width] for frame in stored.frames(index, feature)]
        arrays[camera.path] = np.stack(frames)
    num_steps = len(columns[layout.ACTION])
    arrays[recorded.DONES] = np.zeros(num_steps, np.uint8)
    arrays[recorded.DONES][-1:] = 1
    episode = stored.episodes[index]
    attributes: dict[str, AttributeValue] = dict(_plain_attributes(about.get("attributes", {})))
    attributes |= {
        "job": attributes.get("job", stored.root.resolve().name),
        "episode_index": index,
        "language_instruction": episode.task,
        "control_dt": 1 / stored.fps,
    }
    return RecordedEpisode(
        episode_index=index, arrays=arrays, attributes=attributes, env_args=about.get("env_args", {})
    )


def _plain_attributes(values: Mapping[str, Any]) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in values.items():
        if isinstance(value, str | int | float | bool):
            yield name, value
