"""Recordings in HDF5, in robomimic's and Isaac Lab's layout: written, found, and read as a stranger's."""

import math
import os
import re
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import util
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import (
    h5f,  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it
    h5i,  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it
    h5l,  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it
    h5o,  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it
)

from isaaclab_arena.errors import ConfigError, DamagedFileError, Problem, StorageError, first_line
from isaaclab_arena.interfaces.episode import in_words as named_in_words
from isaaclab_arena.logs import told
from isaaclab_arena.paths import given_path, not_a_plain_file
from isaaclab_arena.storage import atomic, episode_file, layout
from isaaclab_arena.storage.layout import ACTIONS, DATA_GROUP, demo_index, demo_name
from isaaclab_arena.storage.ledger import datasets, episode_files

# Bound the work of reading a recording: compare its declared sizes with the size of its file.
#
# A few bytes of HDF5 can declare an array of any size, or any number of episodes that are one and the same group. So
# declared sizes are compared with stored sizes before a read. All reads of one open file together are compared with the
# size of the file.

FREE_EXPANSION_BYTES = 1 << 30
"""Size that compressed arrays may have in any case [bytes], so that black pictures of any length are read."""
MAX_EXPANSION = 1100  # bytes that a stored byte may expand to beyond that; deflate gives 1,032 at most
MIN_MEMBER_BYTES = 32  # smallest size of an object or an attribute in a file [bytes]
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_NUMBERS = "biuf"
_MAX_NUMBER_BYTES = 8
_HEADER_BYTES = 4096
_MANY_AND_TOO_BIG = "declares more than its file has room for"


def check_array(dataset: h5py.h5d.DatasetID, place: str) -> tuple[int, bool]:
    """Return the bytes of a read, and True if they are compressed. StorageError if the dataset is unsafe to read."""
    # Unsafe: not numeric, stored in other files, or larger than its stored bytes allow. No value is read here.
    is_elsewhere, chunk, filters = _stored_as(dataset)
    if is_elsewhere:
        raise DamagedFileError(f"{place} takes its values from other files, and those are not read")
    try:
        kind = dataset.dtype
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{place} holds what is no number: {error}") from error
    if kind.kind not in _NUMBERS or kind.itemsize > _MAX_NUMBER_BYTES:
        raise DamagedFileError(f"{place} holds {kind}, and only numbers are read, of up to 8 bytes")
    if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        raise DamagedFileError(f"{place} has no shape and holds nothing")
    declared = math.prod(dataset.shape) * kind.itemsize
    if declared == 0:
        return 0, False
    stored = dataset.get_storage_size()
    if chunk is not None:
        chunk_bytes = math.prod(chunk) * kind.itemsize
        # HDF5 decompresses whole chunks, also where they extend beyond the array.
        declared = chunk_bytes * math.prod(-(-size // part) for size, part in zip(dataset.shape, chunk, strict=True))
        if filters:
            _check_filtered(dataset, chunk_bytes, filters[-1], stored, place)
    allowed = stored if not filters else min(stored, 1) * FREE_EXPANSION_BYTES + MAX_EXPANSION * stored
    if declared > allowed:
        raise DamagedFileError(f"{place} declares {declared:,} bytes, of which {stored:,} are stored")
    return declared, bool(filters)


def _stored_as(dataset: h5py.h5d.DatasetID) -> tuple[bool, tuple[int, ...] | None, tuple[int, ...]]:
    """Return True if other files hold the values, the shape of a chunk (None without chunks), and the filters."""
    # The properties are read and released here. HDF5 2.0 crashes at process exit if the properties of a virtual dataset
    # are still held, such as by the traceback of the error that refuses it.
    properties = dataset.get_create_plist()
    kind = properties.get_layout()
    is_chunked = kind == h5py.h5d.CHUNKED
    filters = tuple(properties.get_filter(each)[0] for each in range(properties.get_nfilters()))
    is_elsewhere = kind == h5py.h5d.VIRTUAL or properties.get_external_count() > 0
    return is_elsewhere, properties.get_chunk() if is_chunked else None, filters if is_chunked else ()


def _check_filtered(dataset: h5py.h5d.DatasetID, chunk_bytes: int, last: int, stored: int, place: str) -> None:
    """Refuse chunks that decompress to more than a chunk: HDF5 allocates all of it before it checks."""
    if stored * MAX_EXPANSION <= FREE_EXPANSION_BYTES:
        return
    chunks = []
    dataset.chunk_iter(lambda chunk: chunks.append((chunk.chunk_offset, chunk.size)))
    for offset, num_bytes in chunks:
        if num_bytes > chunk_bytes + chunk_bytes // 64 + _HEADER_BYTES:
            raise DamagedFileError(f"{place} stores {num_bytes:,} bytes of a chunk of {chunk_bytes:,}")
        if last != h5py.h5z.FILTER_DEFLATE or num_bytes * MAX_EXPANSION <= FREE_EXPANSION_BYTES:
            continue
        # Inflate the chunk piece by piece until it is larger than a chunk. HDF5 reports a defect itself.
        content, room = dataset.read_direct_chunk(offset)[1], chunk_bytes
        inflating = zlib.decompressobj()
        with suppress(zlib.error):
            while content and not inflating.eof and room >= 0:
                room -= len(inflating.decompress(content, 1 << 24))
                content = inflating.unconsumed_tail
            if room < 0:
                raise DamagedFileError(f"{place} holds a chunk that unpacks into more than a chunk")


# A recording that is open for reading. It is untrusted input.
#
# h5py's low-level interface is used: an episode has many small arrays, and the high-level one costs more than HDF5.

MAX_DEPTH = 16
_REFUSED = re.compile(r"errno = ([1-9][0-9]*)")  # the part of any HDF5 error's text that names the system's own error


@contextmanager
def hdf5_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn any HDF5 error into DamagedFileError (bad content) or StorageError (the system refused) with the path."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        said = _REFUSED.search(str(error))
        number = error.errno if isinstance(error, OSError) and error.errno else int(said[1]) if said else None
        if number is not None:
            raise atomic.storage_error(doing, path, OSError(number, os.strerror(number))) from error
        raise DamagedFileError(f"cannot {doing} {path}: {first_line(error)}") from error
    except MemoryError as error:
        # No read exceeds what the file's size allows, so the machine itself is short of memory.
        raise StorageError(f"cannot {doing} {path}: no memory is left") from error


@contextmanager
def opened(path: Path) -> "Iterator[OpenRecording]":
    """Open a recording for reading. DamagedFileError if it holds no episodes or is not a file."""
    # HDF5's own lock is off, because some file systems lack it. A run's files have one writer, guarded by `RunLock`.
    atomic.check_plain(path)
    with hdf5_errors("read", path), h5py.File(path, "r", locking=False) as file:
        yield OpenRecording(file, path)


class OpenRecording:
    """A file of episodes that is open for reading, with its reading budget. DamagedFileError without episodes."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.path = path
        # The distinct members and the bytes that the file has room for, less those that were read.
        file_bytes = path.stat().st_size
        self._members, self._plain_bytes = file_bytes // MIN_MEMBER_BYTES, file_bytes
        self._expanded_bytes = FREE_EXPANSION_BYTES + MAX_EXPANSION * file_bytes
        data = member(file.id, DATA_GROUP.encode())
        if not isinstance(data, h5py.h5g.GroupID):
            raise DamagedFileError(f"{path} is not a recording: it has no group /{DATA_GROUP}")
        self.data: h5py.h5g.GroupID = data

    def group(self, episode_index: int) -> h5py.h5g.GroupID:
        """Return the group of an episode."""
        group = member(self.data, demo_name(episode_index).encode())
        if group is None and episode_index in self.names:
            group = member(self.data, self.names[episode_index])
        if not isinstance(group, h5py.h5g.GroupID):
            raise DamagedFileError(f"{self.path} holds no {demo_name(episode_index)}")
        return group

    @cached_property
    def names(self) -> dict[int, bytes]:
        """Map each episode to its group's name. ``demo_1`` takes precedence if ``demo_01`` exists too."""
        found: dict[int, bytes] = {}
        # According to h5py's stubs the iterator may be None.
        for name in self.data.__iter__() or ():
            index = demo_index(name.decode(errors="replace"))
            if index is not None and (index not in found or name == demo_name(index).encode()):
                found[index] = name
        return found

    def attributes(self, group: h5py.h5g.GroupID) -> dict[str, episode_file.AttributeValue]:
        """Return the attributes of a group that are scalar strings or numbers."""
        # Attributes and objects are counted before they are read: the file cannot hold more distinct ones.
        number = h5py.h5a.get_num_attrs(group)
        self._members -= number
        if self._members < 0:
            raise DamagedFileError(f"{place(group)} {_MANY_AND_TOO_BIG}: its groups hold each other")
        values = {}
        for index in range(number):
            attribute = h5py.h5a.open(group, index=index)
            value = _scalar(attribute)
            if value is not None:
                values[attribute.name.decode(errors="replace")] = value
        return values

    def verified_attributes(self, episode_index: int) -> dict[str, episode_file.AttributeValue]:
        """Return the attributes of an episode. DamagedFileError if its arrays do not match their checksum."""
        group = self.group(episode_index)
        attributes = self.attributes(group)
        found = episode_file.checksum({name: self.array(dataset) for name, dataset in self.datasets(group)})
        if attributes.get("checksum") != found:
            place = f"/{DATA_GROUP}/{demo_name(episode_index)}"
            raise DamagedFileError(f"{self.path}: the arrays of {place} are not what was written (checksum {found})")
        episode_file.num_samples_of(attributes)
        return attributes

    def datasets(self, group: h5py.h5g.GroupID, prefix: str = "") -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
        """Yield all datasets below a group by their path."""
        # A group may contain itself.
        if prefix.count("/") > MAX_DEPTH:
            raise DamagedFileError(f"{place(group)} lies deeper than {MAX_DEPTH} levels")
        for name in group.__iter__() or ():
            self._members -= 1
            if self._members < 0:
                raise DamagedFileError(f"{self.path} {_MANY_AND_TOO_BIG}: its groups hold each other")
            item = member(group, name)
            path = prefix + name.decode(errors="replace")
            if isinstance(item, h5py.h5d.DatasetID):
                yield path, item
            elif isinstance(item, h5py.h5g.GroupID):
                yield from self.datasets(item, f"{path}/")

    def array(self, dataset: h5py.h5d.DatasetID) -> np.ndarray:
        """Return the values of a dataset."""
        # StorageError if the arrays that were read exceed the size of the file; see `check_array`.
        num_bytes, is_filtered = check_array(dataset, place(dataset))
        if is_filtered:
            self._expanded_bytes -= num_bytes
        else:
            self._plain_bytes -= num_bytes
        if min(self._expanded_bytes, self._plain_bytes) < 0:
            raise DamagedFileError(f"{place(dataset)} {_MANY_AND_TOO_BIG}: arrays share what they hold")
        array = np.empty(dataset.shape, dataset.dtype)
        if array.size == 0:
            return array
        try:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        except OSError:
            # Files with Zstandard need an optional plugin, which is loaded only on demand.
            if h5py.h5z.filter_avail(episode_file.ZSTD_FILTER) or util.find_spec("hdf5plugin") is None:
                raise
            import hdf5plugin  # noqa: F401, PLC0415  optional package, whose import only registers the filter

            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        return array


def member(group: h5py.h5g.GroupID, name: bytes) -> h5py.h5g.GroupID | h5py.h5d.DatasetID | None:
    """Return the member of a group under a name, None if it is missing. DamagedFileError for a link elsewhere."""
    if name not in group:
        return None
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise DamagedFileError(
            f"{place(group)}/{name.decode(errors='replace')} is a link to another place, and links are not followed"
        )
    return h5o.open(group, name)


def _scalar(attribute: h5py.h5a.AttrID) -> episode_file.AttributeValue | None:
    """Return the value of an attribute that is a scalar string or number, else None."""
    kind = _attribute_dtype(attribute)
    if kind is None or attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR:
        return None
    value = np.empty((), kind)
    attribute.read(value)
    content = value.item()
    return content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else content


def _attribute_dtype(attribute: h5py.h5a.AttrID) -> np.dtype | None:
    try:
        kind = attribute.dtype
    except (TypeError, ValueError):
        return None
    is_text = h5py.check_string_dtype(kind) is not None
    return kind if is_text or (kind.kind in "biuf" and kind.itemsize <= 8) else None


def place(thing: h5py.h5g.GroupID | h5py.h5d.DatasetID) -> str:
    """Return the file and the path of a group or dataset, for messages."""
    file, name = (get_name(thing).decode(errors="replace") for get_name in (h5f.get_name, h5i.get_name))
    return f"{file}: {name.rstrip('/')}"


# Recordings in HDF5, in the layout of robomimic and Isaac Lab: writing and reading of episodes.
#
# Files are written whole and put in place by renaming. No file is open for writing while episodes run: HDF5 updates its
# trees in place, and a kill in such a moment loses earlier episodes too.


def write_episode(
    path: Path,
    episode: episode_file.RecordedEpisode,
    compression: episode_file.Compression = episode_file.Compression.NONE,
    *,
    crc: int | None = None,
    overwrite: bool = False,
) -> int:
    """Write one episode's file atomically, and return the checksum of its arrays.

    Args:
        path: The file.
        episode: The episode; ``arrays`` must contain ``actions``.
        compression: Compression of the arrays.
        crc: The checksum of the arrays, if it is known already.
        overwrite: True to replace an existing file.

    Raises:
        FileThereError: If the file exists and may not be replaced.
        StorageError: If it cannot be written.
        ConfigError: If the compression is not installed.
    """
    crc = episode_file.checksum(episode.arrays) if crc is None else crc
    num_samples = len(episode.arrays[ACTIONS])
    attributes = {**episode.attributes, "num_samples": num_samples, "checksum": crc}
    if compression is not episode_file.Compression.NONE:
        atomic.write_bytes(
            path, episode_file.compressed_episode_file(episode, attributes, compression), overwrite=overwrite
        )
        return crc

    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(episode.arrays.items())}
    kinds: list[tuple[str, np.dtype | None]] = []
    values: list[bytes] = []
    for name, value in attributes.items():
        if isinstance(value, str):
            kind, stored = None, value.encode()
        elif value.__class__ is float:
            kind, stored = _FLOAT64, struct.pack("<d", value)
        elif value.__class__ is int and -(2**63) <= value < 2**63:
            kind, stored = _INT64, struct.pack("<q", value)
        else:
            array = np.asarray(value)
            kind, stored = array.dtype, array.tobytes()
        kinds.append((name, kind))
        values.append(stored)
    structure = tuple([(name, array.dtype, array.ndim) for name, array in arrays.items()])
    content = episode_file.episode_file(
        episode_file.template_of(structure, tuple(kinds)),
        tuple(arrays.values()),
        values,
        env_args=atomic.json_line(episode.env_args),
        episode_index=episode.episode_index,
        num_samples=num_samples,
    )
    atomic.write_bytes(path, content, overwrite=overwrite)
    return crc


def list_episodes(path: Path) -> list[int]:
    """Return the indices of the episodes in a file, ascending. StorageError if the file is no recording."""
    with opened(path) as recording:
        return sorted(recording.names)


def read_attributes(path: Path, episode_index: int) -> dict[str, episode_file.AttributeValue]:
    """Return the attributes of an episode that are a single string or number. StorageError if the file lacks it."""
    with opened(path) as recording:
        return recording.attributes(recording.group(episode_index))


def read_actions(path: Path, episode_index: int) -> np.ndarray:
    """Return the actions of an episode in native byte order. Shape: (num_samples, action_dim)."""
    with opened(path) as recording:
        actions = member(recording.group(episode_index), ACTIONS.encode())
        if not isinstance(actions, h5py.h5d.DatasetID):
            raise DamagedFileError(f"{path}: {demo_name(episode_index)} holds no '{ACTIONS}'")
        array = recording.array(actions)
        if array.ndim != 2:
            raise DamagedFileError(f"{place(actions)} has shape {array.shape}, not (num_samples, action_dim)")
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_episode(path: Path, episode_index: int) -> episode_file.RecordedEpisode:
    """Return an episode. StorageError if the file lacks it, or if an attribute that holds JSON is not valid."""
    with opened(path) as recording:
        group = recording.group(episode_index)
        episode = episode_file.RecordedEpisode(
            episode_index=episode_index,
            arrays={name: recording.array(dataset) for name, dataset in recording.datasets(group)},
            attributes=recording.attributes(group),
            env_args=episode_file.parsed_mapping(
                recording.attributes(recording.data).get("env_args", "{}"), f"{path}: env_args"
            ),
        )
    for name in (name for name in episode_file.JSON_ATTRIBUTES if name in episode.attributes):
        what = f"{path}: the attribute '{name}' of {demo_name(episode_index)}"
        episode_file.parsed_mapping(episode.attributes[name], what)
    return episode


def read_env_args(path: Path) -> Mapping[str, Any]:
    """Return the environment's description in a recording; see `RecordedEpisode`. StorageError if it is not JSON."""
    with opened(path) as recording:
        text = recording.attributes(recording.data).get("env_args", "{}")
        return episode_file.parsed_mapping(text, f"{path}: env_args")


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """The position of an episode's array in its file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None  # start of the C-ordered values in the file [bytes]; None if compressed


def locate_arrays(path: Path, episode_index: int) -> dict[str, ArrayPlace]:
    """Locate each array of an episode, so that parts of it can be read without the rest."""
    places = {}
    with opened(path) as recording:
        for name, dataset in recording.datasets(recording.group(episode_index)):
            check_array(dataset, place(dataset))
            is_plain = dataset.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            offset = dataset.get_offset() if is_plain else None
            places[name] = ArrayPlace(shape=dataset.shape, dtype=dataset.dtype, offset=offset)
    return places


def read_array(path: Path, episode_index: int, name: str) -> np.ndarray:
    """Return one array of an episode. StorageError if the file lacks the episode or the array."""
    with opened(path) as recording:
        for found, dataset in recording.datasets(recording.group(episode_index)):
            if found == name:
                return recording.array(dataset)
    raise DamagedFileError(f"{path}: {demo_name(episode_index)} holds no '{name}'")


def verify_episodes(path: Path, episode_indices: Iterable[int]) -> None:
    """Compare the arrays of episodes with their checksums. StorageError if they differ, or if the file lacks one."""
    with opened(path) as recording:
        for index in episode_indices:
            recording.verified_attributes(index)


def examine_episodes(path: Path, episode_indices: Sequence[int]) -> list[dict[str, episode_file.AttributeValue] | str]:
    """Return the attributes of each episode, or its damage in words. DamagedFileError if the file is no recording."""
    found: list[dict[str, episode_file.AttributeValue] | str] = []
    # An episode's own file has a checksum of all its bytes, which is faster than a look at every array.
    is_part = layout.episode_index_of_file(path.name) is not None
    is_whole = is_part and episode_file.block_of(atomic.read_whole(path)) is not None
    with opened(path) as recording:
        for index in told(episode_indices, "checking", path.name):
            try:
                with hdf5_errors("read", path):
                    attributes = recording.attributes(recording.group(index)) if is_whole else {}
                    is_known = isinstance(attributes.get("checksum"), int)
                    found.append(attributes if is_known else recording.verified_attributes(index))
            except DamagedFileError as error:
                found.append(str(error))
    return found


def read_checksums(path: Path, episode_indices: Iterable[int]) -> list[episode_file.AttributeValue | None]:
    """Return the stored checksum of each episode, None if it has none."""
    found = []
    with opened(path) as recording:
        for group in map(recording.group, episode_indices):
            has_one = h5py.h5a.exists(group, b"checksum")
            found.append(_scalar(h5py.h5a.open(group, b"checksum")) if has_one else None)
    return found


def read_totals(path: Path) -> tuple[object, int]:
    """Return the file's total of control steps, and the sum over its episodes."""
    with opened(path) as recording:
        steps = (recording.attributes(recording.group(index)).get("num_samples") for index in sorted(recording.names))
        told = recording.attributes(recording.data).get("total")
        return told, sum(number for number in steps if isinstance(number, int))


def find_recordings(path: str, *, key: str) -> list[Path]:
    """Return the recordings at a file, a job's directory or a pattern, sorted. ConfigError with `key` if none."""
    found: list[Path] = []
    try:
        given = given_path(path)
        is_directory, exists = given.is_dir(), given.exists()
    except (OSError, RuntimeError, ValueError):
        # Too long a path, links in a circle, or an unknown home directory: there is no file.
        pass
    else:
        if is_directory:
            episodes, pattern = given / layout.EPISODES_DIRECTORY, layout.EPISODE_FILE_PATTERN
            found += [*given.glob("*.hdf5"), *given.glob(pattern), *episodes.glob(pattern)]
        elif exists:
            found.append(given)
        else:
            matches = Path(given.anchor or ".").glob(str(given.relative_to(given.anchor)))
            found += [file for file in matches if not file.is_dir()]
    if not found:
        raise ConfigError(Problem(f"no recording at '{path}'", key=key))
    found.sort()
    problems = [
        Problem(f"'{file}': {wrong}", key=key) for file in found if (wrong := not_a_plain_file(file)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return found


def jobs_of(path: Path, *, key: str) -> Iterator[Sequence[Path]]:
    """Yield the recordings of each job at a file, a pattern, a job or a run. ConfigError with `key` if none."""
    directory = given_path(path)
    below = sorted(each for each in directory.glob("*") if each.is_dir()) if directory.is_dir() else []
    files: dict[Path, list[Path]] = {}
    for job in [directory, *below]:
        try:
            recordings = find_recordings(str(job), key=key)
        except ConfigError:
            continue
        for file in recordings:
            owner = file.parent.parent if file.parent.name == layout.EPISODES_DIRECTORY else file.parent
            # If a job's directory was given as a run, its directory of episodes looks like that of a job.
            known = files.setdefault(owner, [])
            if file not in known:
                known.append(file)
    if not files:
        raise ConfigError(f"no recording at '{path}', nor in its directories", key=key)
    yield from files.values()


def index_episodes(files: Iterable[Path], *, key: str) -> dict[int, Path]:
    """Map each recorded episode of a job to its file, ascending. ConfigError for duplicates or an unreadable file."""
    found: dict[int, Path] = {}
    for file in files:
        try:
            indices = list_episodes(file)
        except StorageError as error:
            raise ConfigError(Problem(str(error), key=key)) from error
        for index in indices:
            if index in found:
                both = f"{found[index]} and {file} both hold {layout.demo_name(index)}"
                raise ConfigError(Problem(f"{both}; name one", key=key))
            found[index] = file
    if not found:
        raise ConfigError(Problem("the recording holds no episodes", key=key))
    return dict(sorted(found.items()))


def in_words(indices: Iterable[int]) -> str:
    """Format indices for messages: ``episodes 0 to 4, 7``."""
    found = [*indices]
    return f"episode{'' if len(found) == 1 else 's'} {named_in_words(found)}"


def recorded_without_arrays(
    job_directory: Path, job: str, checksums: Mapping[int, int | None]
) -> episode_file.RecordedEpisode | None:
    """Return the first recorded episode with a matching checksum, without arrays. None if there is none."""
    found, _ = locate_episodes(job_directory, job)
    for index, checksum in checksums.items():
        for path in found.get(index, ()):
            with suppress(StorageError):
                attributes = read_attributes(path, index)
                episode = episode_file.RecordedEpisode(
                    episode_index=index, arrays={}, attributes=attributes, env_args={}
                )
                if attributes.get("checksum") == checksum and episode.provenance:
                    return episode
    return None


def locate_episodes(job_directory: Path, job: str) -> tuple[dict[int, list[Path]], list[str]]:
    """Map each episode to the files that hold it, and return one message per unreadable file."""
    found: dict[int, list[Path]] = {}
    problems = []
    for file in (*datasets(job_directory, job), *(path for path, _ in episode_files(job_directory))):
        try:
            indices = list_episodes(file)
        except StorageError as error:
            problems.append(str(error))
            continue
        for index in indices:
            found.setdefault(index, []).append(file)
    return found, problems


def file_with(files: Iterable[Path], episode_index: int, checksum: int | None) -> Path | None:
    """Return the first file that holds an episode with these arrays, None if there is none."""
    return next((file for file in files if read_attributes(file, episode_index).get("checksum") == checksum), None)


# Read single control steps of recordings of any size; uncompressed arrays are mapped into memory.

KEPT_BYTES = 1 << 30  # size of the cache of compressed arrays [bytes]


@dataclass(eq=False)
class RecordedSteps:
    """Access control steps of arrays in recordings without a writer. `read` loads a compressed array."""

    kept_bytes: int = KEPT_BYTES  # compressed arrays can only be read whole, so the most recent ones are cached
    read: Callable[[Path, int, str], np.ndarray] = read_array
    _places: Callable[[Path, int], dict[str, ArrayPlace]] = field(
        default_factory=lambda: cache(locate_arrays), init=False
    )
    _mapped: dict[Path, np.memmap] = field(default_factory=dict, init=False)
    _read: OrderedDict[tuple[Path, int, str], np.ndarray] = field(default_factory=OrderedDict, init=False)
    _held_bytes: int = field(default=0, init=False)

    def names(self, file: Path, episode_index: int) -> list[str]:
        """Return the paths of an episode's arrays."""
        return sorted(self._places(file, episode_index))

    def array(self, file: Path, episode_index: int, name: str) -> np.ndarray:
        """Return a read-only array; an uncompressed one is mapped and read on access. StorageError if missing."""
        place = self._places(file, episode_index).get(name)
        if place is None:
            raise StorageError(f"{file}: {layout.demo_name(episode_index)} holds no '{name}'")
        if place.offset is not None and 0 not in place.shape:
            if file not in self._mapped:
                with atomic.storage_errors("read", file):
                    self._mapped[file] = np.memmap(file, np.uint8, "r")
            end = place.offset + int(np.prod(place.shape)) * place.dtype.itemsize
            return self._mapped[file][place.offset : end].view(place.dtype).reshape(place.shape)

        wanted = file, episode_index, name
        if wanted in self._read:
            self._read.move_to_end(wanted)
            return self._read[wanted]
        array = self._read[wanted] = self.read(*wanted)
        self._held_bytes += array.nbytes
        while self._held_bytes > self.kept_bytes and len(self._read) > 1:
            self._held_bytes -= self._read.popitem(last=False)[1].nbytes
        return array
