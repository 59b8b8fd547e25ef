"""Recordings in HDF5, in robomimic's and Isaac Lab's layout; the only file that opens HDF5.

An episode is first a file of its own, complete or not there at all; the episodes of a finished job are then copied
into one dataset file, verified, and only then removed. No file is ever open for writing while episodes run, because
HDF5 updates its trees in place and a kill in such a moment loses earlier episodes too.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import util
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage.atomic import storage_errors, write_bytes, written_in_place
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import ACTIONS, DATA_GROUP, demo_index, demo_name

ZSTD_FILTER = 32015
CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 20

AttributeValue: TypeAlias = str | int | float | bool
Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Path below the episode's group, such as ``obs/robot_joint_pos``, to array."""


class Compression(StrEnum):
    """How arrays are compressed. ``ZSTD`` needs the package hdf5plugin, also in programs that read the file."""

    NONE = "none"
    LZF = "lzf"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One episode as it is stored.

    Attributes:
        episode_index: Its position in the job, which names its group.
        arrays: ``actions`` of shape (num_samples, action_dim) and whatever else was recorded.
        attributes: Attributes of its group, other than ``num_samples`` and ``checksum``.
        env_args: Content of the attribute ``env_args`` of ``/data``.
    """

    episode_index: int
    arrays: Arrays
    attributes: Mapping[str, AttributeValue]
    env_args: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Consolidation:
    """What became of the episode files of a job.

    Attributes:
        episode_indices: Episodes that the dataset holds now, ascending.
        damaged: Episode files that are damaged, with the reason; they stay where they are.
    """

    episode_indices: tuple[int, ...]
    damaged: tuple[tuple[Path, str], ...]


def check_compression(compression: Compression) -> None:
    """Refuse a compression that is not installed.

    Raises:
        ConfigError: If it needs a package that is not there.
    """
    if compression is Compression.ZSTD and util.find_spec("hdf5plugin") is None:
        raise ConfigError(
            "compression 'zstd' needs the package hdf5plugin: pip install 'isaaclab-arena-mujoco[zstd]', or choose gzip"
        )


def checksum(arrays: Arrays) -> int:
    """Return the CRC-32 of names, types, shapes and contents of arrays, in order of their names."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.data.cast("B") if array.size else b"", crc)
    return crc


def write_episode(path: Path, episode: RecordedEpisode, compression: Compression = Compression.NONE) -> int:
    """Write one episode's file, complete or not at all, and return its checksum.

    Args:
        path: The file; there must be none.
        episode: What to write; ``arrays`` holds ``actions``.
        compression: How arrays are compressed.

    Raises:
        StorageError: If the file exists or cannot be written.
        ConfigError: If the compression is not installed.
    """
    crc = checksum(episode.arrays)
    num_samples = len(episode.arrays[ACTIONS])
    # Built in memory and written at once: a twentieth of the system calls, and no lock on a network file system.
    with h5py.File.in_memory(block_size=1 << 16) as file:
        data = file.create_group(DATA_GROUP)
        data.attrs["total"] = num_samples
        data.attrs["env_args"] = json_line(episode.env_args)
        group = data.create_group(demo_name(episode.episode_index))
        for name, value in episode.attributes.items():
            group.attrs[name] = value
        group.attrs["num_samples"] = num_samples
        group.attrs["checksum"] = crc
        for name in sorted(episode.arrays):
            array = episode.arrays[name]
            group.create_dataset(name, data=array, **_filters(array, compression))
        file.flush()
        image = file.id.get_file_image()
    write_bytes(path, image)
    return crc


def list_episodes(path: Path) -> list[int]:
    """Return the indices of the episodes in a file, in numerical order.

    Raises:
        StorageError: If the file is absent or is no recording.
    """
    with _opened(path) as file:
        return _episode_indices(file)


def read_attributes(path: Path, episode_index: int) -> dict[str, AttributeValue]:
    """Return the attributes of an episode's group.

    Raises:
        StorageError: If the file cannot be read or lacks the episode.
    """
    with _opened(path) as file:
        return _attributes(_group(file, episode_index))


def read_actions(path: Path, episode_index: int) -> np.ndarray:
    """Return the actions of an episode. Shape: (num_samples, action_dim).

    Raises:
        StorageError: If the file cannot be read or lacks the episode or its actions.
    """
    with _opened(path) as file:
        actions = _group(file, episode_index).get(ACTIONS)
        if not isinstance(actions, h5py.Dataset):
            raise StorageError(f"{path}: {demo_name(episode_index)} holds no '{ACTIONS}'")
        return _read_array(actions)


def read_episode(path: Path, episode_index: int) -> RecordedEpisode:
    """Return everything that is stored of an episode.

    Raises:
        StorageError: If the file cannot be read or lacks the episode.
    """
    with _opened(path) as file:
        group = _group(file, episode_index)
        env_args = json.loads(str(_data(file).attrs.get("env_args", "{}")))
        attributes = _attributes(group)
        return RecordedEpisode(
            episode_index=episode_index, arrays=_arrays(group), attributes=attributes, env_args=env_args
        )


def verify_episode(path: Path, episode_index: int) -> None:
    """Read an episode's arrays and compare them with its checksum.

    Raises:
        StorageError: If the file cannot be read, lacks the episode, or its arrays are not what was written.
    """
    with _opened(path) as file:
        _verify(_group(file, episode_index), path)


def consolidate(parts: Sequence[Path], dataset: Path) -> Consolidation:
    """Copy episode files into one dataset file, verify every episode there, then remove the episode files.

    A dataset that is there already keeps its episodes and gains those of the parts, so consolidating again after a
    crash at any moment ends in the same file. Compressed chunks are copied as they are.

    Args:
        parts: Files of `write_episode`.
        dataset: The file to make.

    Raises:
        StorageError: If writing fails, or a part holds other content than the same episode of the dataset.
    """
    sources, damaged = _intact(parts)
    if dataset.exists():
        with _opened(dataset) as file:
            sources = [(index, dataset) for index in _episode_indices(file)] + sources
    chosen = _first_of_each(sources)
    if not chosen:
        return Consolidation(episode_indices=(), damaged=damaged)
    with written_in_place(dataset, overwrite=True) as temporary:
        with h5py.File(temporary, "x") as target:
            _copy(chosen, target)
        with _opened(temporary) as written:
            for index in chosen:
                _verify(_group(written, index), dataset)
    for index, part in sources:
        if part != dataset and index in chosen:
            part.unlink(missing_ok=True)
    return Consolidation(episode_indices=tuple(chosen), damaged=damaged)


def _filters(array: np.ndarray, compression: Compression) -> dict[str, Any]:
    if compression is Compression.NONE or array.size == 0 or array.ndim == 0:
        return {}
    row_bytes = max(1, array.nbytes // len(array))
    rows = min(len(array), CHUNK_ROWS if array.ndim > 2 else max(1, CHUNK_BYTES // row_bytes))
    chunks = (rows, *array.shape[1:])
    if compression is Compression.GZIP:
        return {"chunks": chunks, "compression": "gzip", "compression_opts": 1}
    if compression is Compression.LZF:
        return {"chunks": chunks, "compression": "lzf"}
    check_compression(compression)
    _load_zstd()
    return {"chunks": chunks, "compression": ZSTD_FILTER, "compression_opts": (1,)}


def _load_zstd() -> None:
    # Optional and only registers its filters with HDF5; loading it takes longer than all of this module.
    import hdf5plugin  # noqa: F401, PLC0415  optional package


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open for reading; every complaint of HDF5 becomes one that names the file."""
    if not path.is_file():
        raise StorageError(f"no recording at {path}")
    try:
        with storage_errors("read", path), h5py.File(path, "r") as file:
            _data(file)
            yield file
    except (RuntimeError, KeyError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def _data(file: h5py.File) -> h5py.Group:
    data = file.get(DATA_GROUP)
    if not isinstance(data, h5py.Group):
        raise StorageError(f"{file.filename} is no recording: it has no group /{DATA_GROUP}")
    return data


def _episode_indices(file: h5py.File) -> list[int]:
    return sorted(index for index in map(demo_index, _data(file)) if index is not None)


def _group(file: h5py.File, episode_index: int) -> h5py.Group:
    group = _data(file).get(demo_name(episode_index))
    if not isinstance(group, h5py.Group):
        raise StorageError(f"{file.filename} holds no {demo_name(episode_index)}")
    return group


def _attributes(group: h5py.Group) -> dict[str, AttributeValue]:
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in group.attrs.items()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _arrays(group: h5py.Group) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = _read_array(item)

    group.visititems(add)
    return arrays


def _read_array(dataset: h5py.Dataset) -> np.ndarray:
    properties = dataset.id.get_create_plist()
    filters = {properties.get_filter(position)[0] for position in range(properties.get_nfilters())}
    if ZSTD_FILTER in filters and not h5py.h5z.filter_avail(ZSTD_FILTER):
        check_compression(Compression.ZSTD)
        _load_zstd()
    return np.asarray(dataset[()])


def _verify(group: h5py.Group, path: Path) -> None:
    found = checksum(_arrays(group))
    if _attributes(group).get("checksum") != found:
        raise StorageError(f"{path}: the arrays of {group.name} are not what was written (checksum {found})")


def _intact(parts: Iterable[Path]) -> tuple[list[tuple[int, Path]], tuple[tuple[Path, str], ...]]:
    """Return the episode index of each part that verifies, and the parts that do not."""
    intact: list[tuple[int, Path]] = []
    damaged: list[tuple[Path, str]] = []
    for part in parts:
        try:
            with _opened(part) as file:
                for index in _episode_indices(file):
                    _verify(_group(file, index), part)
                    intact.append((index, part))
        except StorageError as error:
            damaged.append((part, str(error)))
    return intact, tuple(damaged)


def _first_of_each(sources: Iterable[tuple[int, Path]]) -> dict[int, Path]:
    """Return one source of each episode, ascending by index.

    Raises:
        StorageError: If two sources of an episode differ.
    """
    chosen: dict[int, Path] = {}
    for index, path in sources:
        first = chosen.setdefault(index, path)
        if first != path and read_attributes(first, index).get("checksum") != read_attributes(path, index)["checksum"]:
            raise StorageError(f"{first} and {path} both hold {demo_name(index)}, with different content")
    return {index: chosen[index] for index in sorted(chosen)}


def _copy(chosen: Mapping[int, Path], target: h5py.File) -> None:
    data = target.create_group(DATA_GROUP)
    total, env_args = 0, "{}"
    for index, path in chosen.items():
        with _opened(path) as source:
            group = _group(source, index)
            source.copy(group, data, name=demo_name(index))
            total += int(_attributes(group)["num_samples"])
            env_args = str(_data(source).attrs.get("env_args", env_args))
    data.attrs["total"] = total
    data.attrs["env_args"] = env_args
