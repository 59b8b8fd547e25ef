"""Recordings in HDF5, in robomimic's and Isaac Lab's layout: writing an episode, and reading it.

Files are written whole and put in place by renaming. None is ever open for writing while episodes run, because HDF5
updates its trees in place, and a kill in such a moment loses earlier episodes too.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.storage.atomic import write_bytes
from isaaclab_arena.storage.hdf5.compressed_image import compressed_episode_file
from isaaclab_arena.storage.hdf5.episode_template import template_of
from isaaclab_arena.storage.hdf5.opened_file import member, opened, place
from isaaclab_arena.storage.hdf5.reading_budget import check_array
from isaaclab_arena.storage.hdf5.recording_image import episode_file
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import ACTIONS, demo_name
from isaaclab_arena.storage.recorded_episode import (
    JSON_ATTRIBUTES,
    AttributeValue,
    Compression,
    RecordedEpisode,
    checksum,
    parsed_mapping,
)


def write_episode(
    path: Path,
    episode: RecordedEpisode,
    compression: Compression = Compression.NONE,
    *,
    crc: int | None = None,
    overwrite: bool = False,
) -> int:
    """Write one episode's file, complete or not at all, and return its checksum.

    Args:
        path: The file.
        episode: What to write; ``arrays`` holds ``actions``.
        compression: How arrays are compressed.
        crc: The checksum of the arrays, where it is known already.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        FileThereError: If the file exists and may not be replaced.
        StorageError: If it cannot be written.
        ConfigError: If the compression is not installed.
    """
    crc = checksum(episode.arrays) if crc is None else crc
    attributes = {**episode.attributes, "num_samples": len(episode.arrays[ACTIONS]), "checksum": crc}
    if compression is Compression.NONE:
        content = _episode_image(episode, attributes)
    else:
        content = compressed_episode_file(episode, attributes, compression)
    write_bytes(path, content, overwrite=overwrite)
    return crc


def list_episodes(path: Path) -> list[int]:
    """Return the indices of the episodes in a file, in numerical order.

    Raises:
        StorageError: If the file is absent or is no recording.
    """
    with opened(path) as recording:
        return recording.indices()


def read_attributes(path: Path, episode_index: int) -> dict[str, AttributeValue]:
    """Return the attributes of an episode's group that are one text or one number; others are left out.

    Raises:
        StorageError: If the file cannot be read or lacks the episode.
    """
    with opened(path) as recording:
        return recording.attributes(recording.group(episode_index))


def read_actions(path: Path, episode_index: int) -> np.ndarray:
    """Return the actions of an episode, in this machine's byte order. Shape: (num_samples, action_dim).

    Raises:
        StorageError: If the file cannot be read or lacks the episode or its actions.
    """
    with opened(path) as recording:
        actions = member(recording.group(episode_index), ACTIONS.encode())
        if not isinstance(actions, h5py.h5d.DatasetID):
            raise DamagedFileError(f"{path}: {demo_name(episode_index)} holds no '{ACTIONS}'")
        array = recording.array(actions)
        if array.ndim != 2:
            raise DamagedFileError(f"{place(actions)} has shape {array.shape}, not (num_samples, action_dim)")
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_episode(path: Path, episode_index: int) -> RecordedEpisode:
    """Return everything that is stored of an episode.

    Raises:
        StorageError: If the file cannot be read or lacks the episode, or says something that is no JSON where it should
            be.
    """
    with opened(path) as recording:
        group = recording.group(episode_index)
        episode = RecordedEpisode(
            episode_index=episode_index,
            arrays=recording.arrays(group),
            attributes=recording.attributes(group),
            env_args=recording.env_args(),
        )
    for name in (name for name in JSON_ATTRIBUTES if name in episode.attributes):
        parsed_mapping(episode.attributes[name], f"{path}: the attribute '{name}' of {demo_name(episode_index)}")
    return episode


def read_env_args(path: Path) -> Mapping[str, Any]:
    """Return what a recording says of its environment; see `RecordedEpisode`.

    Raises:
        StorageError: If the file cannot be read, or does not hold that as JSON.
    """
    with opened(path) as recording:
        return recording.env_args()


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """Where an array of an episode lies in its file.

    Attributes:
        shape: Its shape.
        dtype: Its element type.
        offset: Where its bytes begin in the file, entry after entry in C order; None where they are compressed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None


def locate_arrays(path: Path, episode_index: int) -> dict[str, ArrayPlace]:
    """Return where each array of an episode lies, so that parts of it can be read without the rest.

    Raises:
        StorageError: If the file cannot be read or lacks the episode.
    """
    with opened(path) as recording:
        return {name: _place_of(dataset) for name, dataset in recording.datasets(recording.group(episode_index))}


def _place_of(dataset: h5py.h5d.DatasetID) -> ArrayPlace:
    check_array(dataset, place(dataset))
    is_plain = dataset.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return ArrayPlace(shape=dataset.shape, dtype=dataset.dtype, offset=dataset.get_offset() if is_plain else None)


def read_array(path: Path, episode_index: int, name: str) -> np.ndarray:
    """Return one array of an episode.

    Raises:
        StorageError: If the file cannot be read or lacks the episode or the array.
    """
    with opened(path) as recording:
        for found, dataset in recording.datasets(recording.group(episode_index)):
            if found == name:
                return recording.array(dataset)
    raise DamagedFileError(f"{path}: {demo_name(episode_index)} holds no '{name}'")


def verify_episodes(path: Path, episode_indices: Iterable[int]) -> None:
    """Read the arrays of episodes and compare them with their checksums.

    Raises:
        StorageError: If the file cannot be read, lacks an episode, or its arrays are not what was written.
    """
    with opened(path) as recording:
        for index in episode_indices:
            recording.verified_attributes(index)


def read_all_attributes(path: Path, episode_indices: Iterable[int]) -> list[dict[str, AttributeValue]]:
    """Return the attributes of the groups of several episodes; see `read_attributes`."""
    with opened(path) as recording:
        return [recording.attributes(recording.group(index)) for index in episode_indices]


def read_checksums(path: Path, episode_indices: Iterable[int]) -> list[AttributeValue | None]:
    """Return the checksum that each of several episodes says it has, None where it says none.

    Raises:
        StorageError: If the file cannot be read or lacks an episode.
    """
    with opened(path) as recording:
        return [recording.attribute(recording.group(index), "checksum") for index in episode_indices]


def read_totals(path: Path) -> tuple[object, int]:
    """Return how many control steps a file says that it holds, and how many its episodes say that they have.

    Raises:
        StorageError: If the file cannot be read.
    """
    with opened(path) as recording:
        steps = (recording.attributes(recording.group(index)).get("num_samples") for index in recording.indices())
        told = recording.attributes(recording.data).get("total")
        return told, sum(number for number in steps if isinstance(number, int))


def _episode_image(episode: RecordedEpisode, attributes: Mapping[str, AttributeValue]) -> bytearray:
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(episode.arrays.items())}
    values = [_stored(value) for value in attributes.values()]
    template = template_of(
        tuple([(name, array.dtype, array.ndim) for name, array in arrays.items()]),
        tuple([(name, kind) for name, (kind, _) in zip(attributes, values, strict=True)]),
    )
    return episode_file(
        template,
        tuple(arrays.values()),
        [stored for _, stored in values],
        env_args=json_line(episode.env_args),
        episode_index=episode.episode_index,
        num_samples=len(episode.arrays[ACTIONS]),
    )


_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def _stored(value: AttributeValue) -> tuple[np.dtype | None, bytes]:
    """Return the type of an attribute, None of a text, and the bytes of its value."""
    if isinstance(value, str):
        return None, value.encode()
    if value.__class__ is float:
        return _FLOAT64, struct.pack("<d", value)
    if value.__class__ is int and -(2**63) <= value < 2**63:
        return _INT64, struct.pack("<q", value)
    array = np.asarray(value)
    return array.dtype, array.tobytes()
