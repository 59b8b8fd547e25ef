"""A recording that is open for reading. It is looked at as if a stranger had made it.

Through h5py's low-level interface: an episode has many small arrays, and the high-level one costs more than HDF5.
"""

import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import util
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5f, h5i, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it

from isaaclab_arena.errors import DamagedFileError, StorageError, first_line
from isaaclab_arena.storage.atomic import check_plain, storage_error, storage_errors
from isaaclab_arena.storage.hdf5.compressed_image import ZSTD_FILTER, load_zstd
from isaaclab_arena.storage.hdf5.episode_template import EpisodeTemplate, WholeEpisode, template_of
from isaaclab_arena.storage.hdf5.reading_budget import ReadingBudget
from isaaclab_arena.storage.layout import DATA_GROUP, demo_index, demo_name
from isaaclab_arena.storage.recorded_episode import AttributeValue, checksum, num_samples_of, parsed_mapping

MAX_DEPTH = 16


_REFUSED = re.compile(r"errno = ([1-9][0-9]*)")
"""How HDF5's errors, of any kind and at any depth, say that the system has refused something."""


@contextmanager
def hdf5_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn what HDF5 raises, of whatever kind, into an error that names the file.

    Raises:
        DamagedFileError: If the file holds what HDF5 cannot make sense of.
        StorageError: If the system refuses it, which says nothing about what the file holds.
    """
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        said = _REFUSED.search(str(error))
        number = error.errno if isinstance(error, OSError) and error.errno else int(said[1]) if said else None
        if number is not None:
            raise storage_error(doing, path, OSError(number, os.strerror(number))) from error
        raise DamagedFileError(f"cannot {doing} {path}: {first_line(error)}") from error
    except MemoryError as error:
        # Nothing larger than the file allows was asked for: this machine is short of memory.
        raise StorageError(f"cannot {doing} {path}: no memory is left") from error


@contextmanager
def opened(path: Path) -> "Iterator[OpenRecording]":
    """Open for reading.

    Without HDF5's own lock, which not every file system has: a run's files have one writer, whom `RunLock` protects.

    Raises:
        DamagedFileError: If the file holds no episodes, or is no file.
        StorageError: If there is none, or the system cannot read it.
    """
    check_plain(path)
    with hdf5_errors("read", path), h5py.File(path, "r", locking=False) as file:
        yield OpenRecording(file, path)


def mapped(path: Path) -> memoryview:
    """Return the bytes of a file, which nobody writes to any more; the system reads what is looked at."""
    with storage_errors("read", path), path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class OpenRecording:
    """A file of episodes that is open for reading, and what is left of what may be read of it.

    Args:
        file: The file.
        path: Where it is.

    Raises:
        DamagedFileError: If it holds no episodes.
    """

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.path = path
        self._budget = ReadingBudget(path.stat().st_size)
        data = member(file.id, DATA_GROUP.encode())
        if not isinstance(data, h5py.h5g.GroupID):
            raise DamagedFileError(f"{path} is no recording: it has no group /{DATA_GROUP}")
        self.data = data

    def indices(self) -> list[int]:
        """Return the indices of all episodes, ascending."""
        return sorted(self._named)

    def group(self, episode_index: int) -> h5py.h5g.GroupID:
        """Return the group of an episode."""
        group = member(self.data, demo_name(episode_index).encode())
        if group is None and episode_index in self._named:
            group = member(self.data, self._named[episode_index])
        if not isinstance(group, h5py.h5g.GroupID):
            raise DamagedFileError(f"{self.path} holds no {demo_name(episode_index)}")
        return group

    @cached_property
    def _named(self) -> dict[int, bytes]:
        """Name of each episode's group; the plain one, such as ``demo_1``, where ``demo_01`` is there too."""
        found: dict[int, bytes] = {}
        for name in _names(self.data):
            index = demo_index(name.decode(errors="replace"))
            if index is not None and (index not in found or name == demo_name(index).encode()):
                found[index] = name
        return found

    def env_args(self) -> Mapping[str, Any]:
        """Return what describes the environment."""
        return parsed_mapping(self.attributes(self.data).get("env_args", "{}"), f"{self.path}: env_args")

    def attributes(self, group: h5py.h5g.GroupID) -> dict[str, AttributeValue]:
        """Return the attributes of a group that are one text or one number."""
        number = h5py.h5a.get_num_attrs(group)
        self._budget.spend_members(number, place(group))
        values = {}
        for index in range(number):
            attribute = h5py.h5a.open(group, index=index)
            value = _scalar(attribute)
            if value is not None:
                values[attribute.name.decode(errors="replace")] = value
        return values

    def attribute(self, group: h5py.h5g.GroupID, name: str) -> AttributeValue | None:
        """Return an attribute of a group; None if it has none of that name that is one text or one number."""
        if not h5py.h5a.exists(group, name.encode()):
            return None
        return _scalar(h5py.h5a.open(group, name.encode()))

    def verified_attributes(self, episode_index: int) -> dict[str, AttributeValue]:
        """Return the attributes of an episode whose arrays are what was written."""
        group = self.group(episode_index)
        attributes = self.attributes(group)
        found = checksum(self.arrays(group))
        if attributes.get("checksum") != found:
            place = f"/{DATA_GROUP}/{demo_name(episode_index)}"
            raise DamagedFileError(f"{self.path}: the arrays of {place} are not what was written (checksum {found})")
        num_samples_of(attributes)
        return attributes

    def template(self, group: h5py.h5g.GroupID) -> EpisodeTemplate | None:
        """Return the structure of an episode's group, None if it cannot be one that this program writes."""
        kinds = {name: (dataset.dtype, dataset.rank) for name, dataset in self.datasets(group)}
        attributes = []
        for index in range(h5py.h5a.get_num_attrs(group)):
            attribute = h5py.h5a.open(group, index=index, index_type=h5py.h5.INDEX_CRT_ORDER)
            kind = _attribute_dtype(attribute)
            if kind is None:
                return None
            attributes.append((attribute.name.decode(), None if kind.kind in "OS" else kind))
        return template_of(tuple((name, *kinds[name]) for name in sorted(kinds)), tuple(attributes))

    def arrays(self, group: h5py.h5g.GroupID) -> dict[str, np.ndarray]:
        """Return all arrays below a group by their path."""
        return {name: self.array(dataset) for name, dataset in self.datasets(group)}

    def datasets(self, group: h5py.h5g.GroupID, prefix: str = "") -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
        """Yield all datasets below a group by their path."""
        # A group may hold itself.
        if prefix.count("/") > MAX_DEPTH:
            raise DamagedFileError(f"{place(group)} lies deeper than {MAX_DEPTH} levels")
        for name in _names(group):
            self._budget.spend_members(1, str(self.path))
            item = member(group, name)
            path = prefix + name.decode(errors="replace")
            if isinstance(item, h5py.h5d.DatasetID):
                yield path, item
            elif isinstance(item, h5py.h5g.GroupID):
                yield from self.datasets(item, f"{path}/")

    def array(self, dataset: h5py.h5d.DatasetID) -> np.ndarray:
        """Return the values of a dataset."""
        self._budget.spend_array(dataset, place(dataset))
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


class AlikeEpisodes:
    """Reads episodes without HDF5's library, in a twentieth of its time, if they look like the one before.

    Attributes:
        template: What the last episode looks like, None before the first.
    """

    def __init__(self) -> None:
        self.template: EpisodeTemplate | None = None

    def read(self, recording: OpenRecording, episode_index: int, content: memoryview) -> WholeEpisode | None:
        """Return an episode whose arrays are what was written, None if that is for the library to say.

        Args:
            recording: A file.
            episode_index: Which of its episodes.
            content: The bytes of the file; see `mapped`.

        Raises:
            StorageError: If the file lacks the episode.
        """
        group = recording.group(episode_index)
        address = h5o.get_info(group).addr
        whole = None if self.template is None else self.template.read(content, address)
        if whole is None:
            self.template = recording.template(group)
            whole = None if self.template is None else self.template.read(content, address)
        return whole


def _names(group: h5py.h5g.GroupID) -> Iterator[bytes]:
    # h5py's stubs say that it may give nothing to go through.
    yield from group.__iter__() or ()


def member(group: h5py.h5g.GroupID, name: bytes) -> h5py.h5g.GroupID | h5py.h5d.DatasetID | None:
    """Return what a group itself holds under a name, None if nothing; a link that leads elsewhere is refused."""
    if name not in group:
        return None
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise DamagedFileError(
            f"{place(group)}/{name.decode(errors='replace')} is a link to another place, and links are not followed"
        )
    return h5o.open(group, name)


def _scalar(attribute: h5py.h5a.AttrID) -> AttributeValue | None:
    """Return the value of an attribute that is one text or one number, None of any other."""
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
    """Return what messages call a group or a dataset: its file and its path in it."""
    file, name = (get_name(thing).decode(errors="replace") for get_name in (h5f.get_name, h5i.get_name))
    return f"{file}: {name.rstrip('/')}"
