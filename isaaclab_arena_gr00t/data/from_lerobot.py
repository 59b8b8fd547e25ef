"""Convert a LeRobot dataset to recordings, one episode at a time."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.schema import folded, name_problem
from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.paths import given_path
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.hdf5.dataset import consolidate
from isaaclab_arena.storage.hdf5.episodes import write_episode
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.recorded_episode import AttributeValue, RecordedEpisode
from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.features import DatasetFeatures
from isaaclab_arena_gr00t.data.stored_dataset import StoredDataset, open_dataset, stored_features, video_feature

_MAX_PICTURE_BYTES = 16 << 30
_MOST_TOLD = 3

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")


def write_recordings(
    dataset: Path, output_dir: Path, told: Callable[[int, int], None] = lambda *_: None
) -> tuple[Path, ...]:
    """Convert a LeRobot dataset to recordings in a run's layout; call `told(done, total)` after each episode."""
    # ConfigError: `output_dir` is not empty, or a JSON file is malformed. StorageError: reading or writing failed.
    output_dir, stored = given_path(output_dir), open_dataset(given_path(dataset))
    features = stored_features(stored)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ConfigError(
            Problem(f"'{output_dir}' is not empty; name a directory that is, or remove it", key="--output_dir")
        )
    # Refuse a dataset with incomplete tables before any recording is written.
    wrong, notes = stored.held_against_tables(stored.episodes)
    if wrong:
        raise StorageError("; ".join(list(wrong.values())[:_MOST_TOLD]))
    for note in notes:
        _LOG.warning("%s", note)
    remembered = stored.remembered()
    recordings, done = [], 0
    for job, indices in _jobs(stored, remembered).items():
        directory = output_dir / job / recorded.EPISODES_DIRECTORY
        parts = []
        for index in indices:
            parts.append(directory / recorded.episode_file_name(index))
            write_episode(parts[-1], _episode(stored, features, index, remembered.get(index, {})))
            done += 1
            told(done, len(stored.episodes))
        recordings.append(directory.parent / recorded.dataset_file_name(job, 0, 1))
        # Until a recording is complete, its episodes are in separate files beside it.
        made = consolidate(parts, recordings[-1])
        if made.damaged:
            raise StorageError(made.damaged[0][1])
        with storage_errors("remove", directory):
            directory.rmdir()
    return tuple(recordings)


def _jobs(stored: StoredDataset, remembered: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the episodes of each job; a recording has one environment, so two environments are two jobs."""
    names: dict[tuple[str, str], str] = {}
    jobs: dict[str, list[int]] = {}
    for index in stored.episodes:
        about = remembered.get(index, {})
        job = str(about.get("attributes", {}).get("job", _fallback_job(stored)))
        key = job, json_line(about.get("env_args", {}))
        if key not in names:
            # File systems may fold the case of names, so the names of two jobs must differ without it.
            safe = job if name_problem(job) is None else "job"
            taken = {folded(name) for name in names.values()}
            choices = chain([safe], (f"{safe}-{number}" for number in count(2)))
            names[key] = next(name for name in choices if folded(name) not in taken)
        jobs.setdefault(names[key], []).append(index)
    return jobs


def _fallback_job(stored: StoredDataset) -> str:
    return stored.root.resolve().name


def _episode(
    stored: StoredDataset, features: DatasetFeatures, index: int, about: Mapping[str, dict[str, Any]]
) -> RecordedEpisode:
    names = [*features.vectors, *([layout.REWARD] if features.rewards else [])]
    columns = stored.columns(index, names)
    _check_pictures(stored, features, index)
    arrays: dict[str, np.ndarray] = {}
    for name, column in features.vectors.items():
        arrays |= column.unpacked(columns[name])
        # A group without its complete source becomes an array of its own.
        for key in column.incomplete_groups():
            start, end = column.spans()[key]
            arrays[f"{recorded.OBSERVATIONS}/{key}"] = np.ascontiguousarray(columns[name][:, start:end])
    if recorded.ACTIONS not in arrays:
        raise StorageError(f"{stored.root}: {layout.ARENA_FILE} does not say where the actions are whole")
    if features.rewards:
        arrays[recorded.REWARDS] = columns[layout.REWARD][:, 0]
    for key, camera in features.cameras.items():
        feature = video_feature(stored, key)
        # A lossy video pads pictures to even sizes.
        frames = [frame[: camera.height, : camera.width] for frame in stored.frames(index, feature)]
        arrays[camera.path] = np.stack(frames)
    num_steps = len(columns[layout.ACTION])
    arrays[recorded.DONES] = np.zeros(num_steps, np.uint8)
    arrays[recorded.DONES][-1:] = 1
    episode = stored.episodes[index]
    attributes: dict[str, AttributeValue] = {
        **_success(stored, index),
        **dict(_plain_attributes(about.get("attributes", {}))),
    }
    attributes |= {
        "job": attributes.get("job", _fallback_job(stored)),
        "episode_index": index,
        "language_instruction": episode.task,
        "control_dt": 1 / stored.fps,
    }
    return RecordedEpisode(
        episode_index=index, arrays=arrays, attributes=attributes, env_args=about.get("env_args", {})
    )


def _success(stored: StoredDataset, index: int) -> dict[str, AttributeValue]:
    """Return the attribute ``success`` from LeRobot's column, no attribute if the dataset has no such column."""
    if stored.features.get(layout.SUCCESS, {}).get("shape") != [1]:
        return {}
    return {"success": bool(stored.columns(index, [layout.SUCCESS])[layout.SUCCESS].any())}


def _check_pictures(stored: StoredDataset, features: DatasetFeatures, index: int) -> None:
    num_steps = stored.episodes[index].num_steps
    num_bytes = sum(num_steps * camera.height * camera.width * 3 for camera in features.cameras.values())
    if num_bytes > _MAX_PICTURE_BYTES:
        raise StorageError(
            f"{stored.root}: the pictures of episode {index} would take {num_bytes >> 30} GiB of memory; "
            f"at most {_MAX_PICTURE_BYTES >> 30} are taken"
        )


def _plain_attributes(values: Mapping[str, Any]) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in values.items():
        if isinstance(value, str | int | float | bool):
            yield name, value
