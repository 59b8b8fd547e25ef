"""Recordings in HDF5, in robomimic's and Isaac Lab's layout; the only file that opens HDF5.

Files are written whole and put in place by renaming. None is ever open for writing while episodes run, because HDF5
updates its trees in place, and a kill in such a moment loses earlier episodes too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import util
from pathlib import Path

import h5py
import numpy as np
from h5py import h5f, h5i, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import storage_errors, write_bytes
from isaaclab_arena.storage.compressed_image import ZSTD_FILTER, compressed_episode_file, load_zstd
from isaaclab_arena.storage.episode_template import ArrayType, EpisodeTemplate
from isaaclab_arena.storage.hdf5_format import AttributeType, text_attribute
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import ACTIONS, DATA_GROUP, demo_index, demo_name
from isaaclab_arena.storage.recorded_episode import AttributeValue, Compression, RecordedEpisode, checksum
from isaaclab_arena.storage.recording_image import DatasetWriter, TopAttributes, block_of, episode_file

_WRITE_BYTES = 1 << 20
MAX_DEPTH = 16


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
    num_samples = len(episode.arrays[ACTIONS])
    attributes = {**episode.attributes, "num_samples": num_samples, "checksum": crc}
    build = _episode_image if compression is Compression.NONE else compressed_episode_file
    write_bytes(path, build(episode, attributes, num_samples, compression), overwrite=overwrite)
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
        actions = _member(_group(file, episode_index).id, ACTIONS.encode())
        if not isinstance(actions, h5py.h5d.DatasetID):
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


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """Where an array of an episode lies in its file.

    Attributes:
        shape: Its shape.
        dtype: Its element type.
        offset: Where its bytes begin in the file, row after row; None where they are compressed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None


def locate_arrays(path: Path, episode_index: int) -> dict[str, ArrayPlace]:
    """Return where each array of an episode lies, so that parts of it can be read without the rest.

    Raises:
        StorageError: If the file cannot be read or lacks the episode.
    """
    with _opened(path) as file:
        return {name: _place_of(dataset) for name, dataset in _datasets(_group(file, episode_index).id, "")}


def _place_of(dataset: h5py.h5d.DatasetID) -> ArrayPlace:
    _refuse_what_lies_elsewhere(dataset)
    is_plain = dataset.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return ArrayPlace(shape=dataset.shape, dtype=dataset.dtype, offset=dataset.get_offset() if is_plain else None)


def read_array(path: Path, episode_index: int, name: str) -> np.ndarray:
    """Return one array of an episode.

    Raises:
        StorageError: If the file cannot be read or lacks the episode or the array.
    """
    with _opened(path) as file:
        for found, dataset in _datasets(_group(file, episode_index).id, ""):
            if found == name:
                return _read_array(dataset)
    raise StorageError(f"{path}: {demo_name(episode_index)} holds no '{name}'")


def verify_episodes(path: Path, episode_indices: Iterable[int]) -> None:
    """Read the arrays of episodes and compare them with their checksums.

    Raises:
        StorageError: If the file cannot be read, lacks an episode, or its arrays are not what was written.
    """
    with _opened(path) as file:
        for index in episode_indices:
            group = _group(file, index)
            found = checksum(_arrays(group))
            if group.attrs.get("checksum") != found:
                raise StorageError(f"{path}: the arrays of {group.name} are not what was written (checksum {found})")


def read_all_attributes(path: Path, episode_indices: Iterable[int]) -> list[dict[str, AttributeValue]]:
    """Return the attributes of the groups of several episodes; see `read_attributes`."""
    with _opened(path) as file:
        return [_attributes(_group(file, index)) for index in episode_indices]


def read_totals(path: Path) -> tuple[object, int]:
    """Return how many control steps a file says that it holds, and how many its episodes say that they have.

    Raises:
        StorageError: If the file cannot be read.
    """
    with _opened(path) as file:
        steps = (_group(file, index).attrs.get("num_samples", 0) for index in _episode_indices(file))
        return _attributes(_data(file)).get("total"), sum(int(np.asarray(number)) for number in steps)


def copy_episodes(sources: Iterable[tuple[int, Path]], target: Path) -> None:
    """Make a file that holds episodes of other files; compressed chunks are copied as they are.

    Args:
        sources: Index of each episode, and the file that holds it.
        target: The file to make; there must be none.

    Raises:
        StorageError: If a source cannot be read or the target cannot be written.
    """
    with _hdf5_errors("write", target), h5py.File(target, "x") as file:
        data = file.create_group(DATA_GROUP)
        total, env_args = 0, "{}"
        for index, path in sources:
            with _opened(path) as source:
                group = _group(source, index)
                source.copy(group, data, name=demo_name(index))
                total += int(np.asarray(group.attrs["num_samples"]))
                env_args = str(_data(source).attrs.get("env_args", env_args))
        data.attrs["total"] = total
        data.attrs["env_args"] = env_args


def assemble_dataset(sources: Iterable[tuple[int, Path]], target: Path) -> bool:
    """Make a file that holds episodes of files of `write_episode`, where these are what was written, uncompressed.

    Each file is read once and compared with its own checksum, which covers everything in it.

    Args:
        sources: Index of each episode, and the file that holds it; at least one.
        target: The file to make; there must be none.

    Returns:
        Whether all sources were such files. If not, the target is no recording; see `copy_episodes`.

    Raises:
        StorageError: If a source cannot be read or the target cannot be written.
    """
    indices, total, env_args = [], 0, "{}"
    with _hdf5_errors("write", target):
        with target.open("xb", buffering=_WRITE_BYTES) as file:
            writer = DatasetWriter(file)
            for index, path in sources:
                with storage_errors("read", path):
                    block = block_of(path.read_bytes())
                if block is None or block.episode_index != index:
                    return False
                writer.add(block)
                indices.append(index)
                total += block.num_samples
                env_args = block.env_args
            writer.finish(_top_attributes(env_args), total)
        _check_assembled(target, indices)
    return True


def _check_assembled(path: Path, indices: Sequence[int]) -> None:
    """Let HDF5 itself read the table of contents and an episode, whose bytes have been checked before."""
    with _opened(path) as file:
        if _episode_indices(file) != sorted(indices) or ACTIONS not in _group(file, indices[-1]):
            raise StorageError(f"{path} does not hold the episodes that were written to it")


def _episode_image(
    episode: RecordedEpisode,
    attributes: Mapping[str, AttributeValue],
    num_samples: int,
    compression: Compression,  # noqa: ARG001  one signature for both
) -> bytearray:
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(episode.arrays.items())}
    values = [value.encode() if isinstance(value, str) else np.asarray(value) for value in attributes.values()]
    template = _template(
        tuple((name, array.dtype, array.ndim) for name, array in arrays.items()),
        tuple(
            (name, None if isinstance(value, bytes) else value.dtype)
            for name, value in zip(attributes, values, strict=True)
        ),
    )
    return episode_file(
        template,
        tuple(arrays.values()),
        [value if isinstance(value, bytes) else value.tobytes() for value in values],
        _top_attributes(json_line(episode.env_args)),
        episode_index=episode.episode_index,
        num_samples=num_samples,
    )


@lru_cache(maxsize=64)
def _template(
    arrays: tuple[tuple[str, np.dtype, int], ...], attributes: tuple[tuple[str, np.dtype | None], ...]
) -> EpisodeTemplate:
    types = [ArrayType(name=name, encoded_type=_encoded_type(dtype), rank=rank) for name, dtype, rank in arrays]
    return EpisodeTemplate(types, [_attribute_type(name, dtype) for name, dtype in attributes])


@lru_cache(maxsize=64)
def _top_attributes(env_args: str) -> TopAttributes:
    return TopAttributes(
        total=_attribute_type("total", np.dtype(np.int64)),
        env_args=_attribute_type("env_args", None),
        env_args_text=env_args.encode(),
    )


def _attribute_type(name: str, dtype: np.dtype | None) -> AttributeType:
    if dtype is None:
        return text_attribute(name, _encoded_type(h5py.string_dtype()))
    return AttributeType(name=name, encoded_type=_encoded_type(dtype), value_bytes=dtype.itemsize)


def _encoded_type(dtype: np.dtype) -> bytes:
    """Return a type as HDF5 writes it; the library puts two bytes of its own before it."""
    return h5py.h5t.py_create(dtype, logical=True).encode()[2:]


# Below, h5py's low-level interface: an episode has many small arrays, and the high-level one costs more than HDF5.


@contextmanager
def _hdf5_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn what HDF5 raises, of whatever kind, into a `StorageError` that names the file."""
    try:
        with storage_errors(doing, path):
            yield
    except (RuntimeError, KeyError, ValueError) as error:
        raise StorageError(f"cannot {doing} {path}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open for reading."""
    if not path.is_file():
        raise StorageError(f"no recording at {path}")
    with _hdf5_errors("read", path), h5py.File(path, "r") as file:
        _data(file)
        yield file


def _data(file: h5py.File) -> h5py.Group:
    data = _member(file.id, DATA_GROUP.encode())
    if not isinstance(data, h5py.h5g.GroupID):
        raise StorageError(f"{file.filename} is no recording: it has no group /{DATA_GROUP}")
    return h5py.Group(data)


def _episode_indices(file: h5py.File) -> list[int]:
    return sorted(index for index in map(demo_index, _data(file)) if index is not None)


def _group(file: h5py.File, episode_index: int) -> h5py.Group:
    group = _member(_data(file).id, demo_name(episode_index).encode())
    if not isinstance(group, h5py.h5g.GroupID):
        raise StorageError(f"{file.filename} holds no {demo_name(episode_index)}")
    return h5py.Group(group)


def _member(group: h5py.h5g.GroupID, name: bytes) -> h5py.h5g.GroupID | h5py.h5d.DatasetID | None:
    """Return what a group itself holds under a name, None if nothing; a link that leads elsewhere is refused."""
    if name not in group:
        return None
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise StorageError(
            f"{_place(group)}/{name.decode(errors='replace')} is a link to another place, and links are not followed"
        )
    return h5o.open(group, name)


def _attributes(group: h5py.Group) -> dict[str, AttributeValue]:
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in group.attrs.items()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _arrays(group: h5py.Group) -> dict[str, np.ndarray]:
    return {name: _read_array(dataset) for name, dataset in _datasets(group.id, "")}


def _datasets(group: h5py.h5g.GroupID, prefix: str) -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
    # A group may hold itself.
    if prefix.count("/") > MAX_DEPTH:
        raise StorageError(f"{_place(group)} lies deeper than {MAX_DEPTH} levels")
    for name in group:
        item = _member(group, name)
        path = prefix + name.decode()
        if isinstance(item, h5py.h5d.DatasetID):
            yield path, item
        elif isinstance(item, h5py.h5g.GroupID):
            yield from _datasets(item, f"{path}/")


def _read_array(dataset: h5py.h5d.DatasetID) -> np.ndarray:
    _refuse_what_lies_elsewhere(dataset)
    array = np.empty(dataset.shape, dataset.dtype)
    if array.size == 0:
        return array
    try:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    except OSError:
        if h5py.h5z.filter_avail(ZSTD_FILTER) or util.find_spec("hdf5plugin") is None:
            raise
        load_zstd()
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _refuse_what_lies_elsewhere(dataset: h5py.h5d.DatasetID) -> None:
    """Refuse a dataset whose values are taken from other files, or are no numbers."""
    properties, kind = dataset.get_create_plist(), dataset.dtype.kind
    if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count() > 0:
        raise StorageError(f"{_place(dataset)} takes its values from other files, and those are not read")
    if kind not in "biuf":
        raise StorageError(f"{_place(dataset)} holds {dataset.dtype}, and only numbers are read")


def _place(thing: h5py.h5g.GroupID | h5py.h5d.DatasetID) -> str:
    file, name = (get_name(thing).decode(errors="replace") for get_name in (h5f.get_name, h5i.get_name))
    return f"{file}: {name.rstrip('/')}"
