"""Read a few control steps of recordings of any size; uncompressed arrays are mapped into memory."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.hdf5.episodes import ArrayPlace, locate_arrays, read_array
from isaaclab_arena.storage.layout import demo_name

KEPT_BYTES = 1 << 30
"""How much of compressed arrays, which can only be read whole, is kept for the next steps of the same episodes."""


@dataclass(frozen=True, kw_only=True)
class RecordedArray:
    """One array of one episode.

    Attributes:
        file: The recording.
        episode_index: The episode.
        name: Path of the array below the episode's group.
    """

    file: Path
    episode_index: int
    name: str


class RecordedSteps:
    """Gives access to control steps of arrays in recordings that nobody writes to any more.

    Args:
        kept_bytes: How much of compressed arrays is kept in memory.
        read: Reads a compressed array: file, index of the episode, name of the array.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES, read: Callable[[Path, int, str], np.ndarray] = read_array) -> None:
        self._read_array = read
        self._places: dict[tuple[Path, int], dict[str, ArrayPlace]] = {}
        self._mapped: dict[Path, np.memmap] = {}
        self._read: OrderedDict[RecordedArray, np.ndarray] = OrderedDict()
        self._kept_bytes = kept_bytes
        self._held_bytes = 0

    def names(self, file: Path, episode_index: int) -> list[str]:
        """Return the paths of the arrays of an episode.

        Raises:
            StorageError: If the file cannot be read or lacks the episode.
        """
        return sorted(self._places_of(file, episode_index))

    def array(self, wanted: RecordedArray) -> np.ndarray:
        """Return an array, of which only what is looked at is read. Not to be written to.

        Raises:
            StorageError: If the file cannot be read or lacks the array.
        """
        place = self._places_of(wanted.file, wanted.episode_index).get(wanted.name)
        if place is None:
            raise StorageError(f"{wanted.file}: {demo_name(wanted.episode_index)} holds no '{wanted.name}'")
        if place.offset is None or 0 in place.shape:
            return self._whole(wanted)
        content = self._map(wanted.file)
        end = place.offset + int(np.prod(place.shape)) * place.dtype.itemsize
        return content[place.offset : end].view(place.dtype).reshape(place.shape)

    def _places_of(self, file: Path, episode_index: int) -> dict[str, ArrayPlace]:
        key = file, episode_index
        if key not in self._places:
            self._places[key] = locate_arrays(file, episode_index)
        return self._places[key]

    def _map(self, file: Path) -> np.memmap:
        if file not in self._mapped:
            with storage_errors("read", file):
                self._mapped[file] = np.memmap(file, np.uint8, "r")
        return self._mapped[file]

    def _whole(self, wanted: RecordedArray) -> np.ndarray:
        if wanted in self._read:
            self._read.move_to_end(wanted)
            return self._read[wanted]
        array = self._read_array(wanted.file, wanted.episode_index, wanted.name)
        self._read[wanted] = array
        self._held_bytes += array.nbytes
        while self._held_bytes > self._kept_bytes and len(self._read) > 1:
            self._held_bytes -= self._read.popitem(last=False)[1].nbytes
        return array
