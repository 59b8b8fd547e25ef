"""The structure that all episodes of a job share, as HDF5 has it: fills in an episode, and reads one back.

HDF5's library takes 1 to 3 ms to make or to read the two dozen small arrays and as many attributes of an episode. But
the episodes of a job differ in sizes, contents and values of attributes alone. Their structure is worked out once,
and an episode is a copy of it with the rest filled in. Whatever reads HDF5 reads the result.
An episode is read back without the library if every byte of its structure is as expected. Any other is left to the
library, so nothing here calls a file damaged.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from isaaclab_arena.storage.hdf5.format import (
    DIMENSIONS_OFFSET,
    HEAP_ADDRESS_OFFSET,
    HEAP_ENTRY_BYTES,
    HEAP_HEADER_BYTES,
    LAYOUT_OFFSET,
    UNDEFINED,
    Block,
    attribute_message,
    dataset_messages,
    group,
    object_header,
    referenced_bytes,
    text_heap,
    text_reference,
    value_bytes,
)
from isaaclab_arena.storage.recorded_episode import AttributeValue, array_checksum, num_samples_of

ArrayType: TypeAlias = tuple[str, np.dtype, int]
"""Path of an array below the group of its episode, element type, and number of dimensions."""
AttributeType: TypeAlias = tuple[str, np.dtype | None]
"""Name of an attribute and its type; None for a text."""

_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True, kw_only=True)
class WholeEpisode:
    """An episode whose arrays are what was written.

    Attributes:
        attributes: Of its group.
        block: Its bytes.
        group_offset: Where in the bytes its group is.
    """

    attributes: dict[str, AttributeValue]
    block: Block
    group_offset: int


@dataclass(frozen=True, kw_only=True)
class _ArraySlot:
    """Where in the structure sizes and place of an array are filled in."""

    name: str
    dtype: np.dtype
    shape: struct.Struct
    shape_at: int
    layout_at: int


@dataclass(frozen=True, kw_only=True)
class _ValueSlot:
    """Where in the structure the value of an attribute is filled in."""

    name: str
    dtype: np.dtype | None
    at: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """The structure of episodes whose arrays have the same shapes, at one place in a file.

    Attributes:
        structure: Its bytes, all but the values of attributes filled in.
        paddings: What follows each array.
        end: Where in the file the arrays end.
        pointers: Where in the structure the addresses are.
    """

    structure: bytes
    paddings: tuple[bytes, ...]
    end: int
    pointers: np.ndarray


class EpisodeTemplate:
    """The structure of episodes that differ in sizes, contents and values of attributes alone.

    Args:
        arrays: What arrays there are, in order of their names.
        attributes: What attributes the group of the episode has.

    Attributes:
        group_offset: Where in an episode's bytes the object header of its group is.
    """

    def __init__(self, arrays: Sequence[ArrayType], attributes: Sequence[AttributeType]) -> None:
        self._structure = bytearray()
        self._pointers: list[int] = []
        members: dict[str, dict[str, int]] = {"": {}}
        self._arrays = [self._add_array(array, members) for array in arrays]
        for path in sorted(filter(None, members), key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            members[parent][name], _ = self._add_group(members[path])
        self.group_offset, self._values = self._add_group(members[""], attributes)
        addresses = [slot.layout_at for slot in self._arrays]
        addresses += [slot.at + HEAP_ADDRESS_OFFSET for slot in self._values if slot.dtype is None]
        self._all_pointers = np.array([*addresses, *self._pointers], np.int64)
        # Most episodes of a job are of a few lengths.
        self._placed = lru_cache(maxsize=256)(self._place)
        self._moved: tuple[int, bytes] = (0, bytes(self._structure))
        self._is_fixed = np.full(len(self._structure), 255, np.uint8)
        places = [(slot.shape_at, slot.shape.size) for slot in self._arrays]
        places += [(slot.layout_at, _PLACE.size) for slot in self._arrays]
        for at, num_bytes in (*places, *((slot.at, slot.num_bytes) for slot in self._values)):
            self._is_fixed[at : at + num_bytes] = 0

    @property
    def max_pointers(self) -> int:
        """Number of addresses in an episode none of whose arrays is empty."""
        return len(self._all_pointers)

    def filled(
        self, arrays: Sequence[np.ndarray], values: Sequence[bytes], address: int
    ) -> tuple[list[bytes | bytearray | memoryview], np.ndarray]:
        """Return the bytes of an episode, in pieces, and the offsets of the addresses in them.

        Args:
            arrays: One array per `ArrayType`, contiguous.
            values: One value per `AttributeType`: its bytes, a text in UTF-8.
            address: Where in a file the episode is to stand.
        """
        placed = self._placed(tuple([array.shape for array in arrays]), address)
        structure = bytearray(placed.structure)
        pieces: list[bytes | bytearray | memoryview] = [structure]
        for array, padding in zip(arrays, placed.paddings, strict=True):
            pieces += (array.data, padding)
        texts: list[bytes] = []
        for value, slot in zip(values, self._values, strict=True):
            stored = value
            if slot.dtype is None:
                texts.append(value)
                stored = text_reference(len(value), placed.end, len(texts))
            structure[slot.at : slot.at + slot.num_bytes] = stored
        pieces.append(text_heap(texts))
        return pieces, placed.pointers

    def _place(self, shapes: tuple[tuple[int, ...], ...], address: int) -> _Placed:
        structure = bytearray(self._structure_at(address))
        position = address + len(structure)
        absent, paddings = [], []
        for shape, slot in zip(shapes, self._arrays, strict=True):
            num_bytes = math.prod(shape) * slot.dtype.itemsize
            slot.shape.pack_into(structure, slot.shape_at, *shape)
            _PLACE.pack_into(structure, slot.layout_at, position if num_bytes else UNDEFINED, num_bytes)
            if num_bytes == 0:
                absent.append(slot.layout_at)
            paddings.append(bytes(-num_bytes % 8))
            position += num_bytes + len(paddings[-1])
        return _Placed(
            structure=bytes(structure),
            paddings=tuple(paddings),
            end=position,
            pointers=self._pointers_without(absent),
        )

    def read(self, content: bytes | memoryview, group_address: int) -> WholeEpisode | None:
        """Return an episode that has this structure and whose arrays are what was written, None for any other.

        Args:
            content: The whole file.
            group_address: Where in it the group of the episode is.
        """
        view, address = memoryview(content), group_address - self.group_offset
        if not self._has_structure(view, address):
            return None
        arrays = self._read_arrays(view, address)
        if arrays is None:
            return None
        crc, heap_address, absent = arrays
        try:
            attributes, end = self._read_values(view, address, heap_address)
            num_samples_of(attributes)
        except ValueError:
            return None
        if attributes.get("checksum") != crc:
            return None
        block = Block(content=view[address:end], pointers=self._pointers_without(absent), origin=address)
        return WholeEpisode(attributes=attributes, block=block, group_offset=self.group_offset)

    def _has_structure(self, content: memoryview, address: int) -> bool:
        if address < 0 or address + len(self._structure) > len(content):
            return False
        found = np.frombuffer(content, np.uint8, len(self._structure), address)
        differs = found ^ np.frombuffer(self._structure_at(address), np.uint8)
        return not (differs & self._is_fixed).any()

    def _read_arrays(self, content: memoryview, address: int) -> tuple[int, int, list[int]] | None:
        """Return the checksum of the arrays, where they end, and which addresses are absent; None if misplaced."""
        crc, position, absent = 0, address + len(self._structure), []
        for slot in self._arrays:
            shape = slot.shape.unpack_from(content, address + slot.shape_at)
            place, num_bytes = _PLACE.unpack_from(content, address + slot.layout_at)
            expected_place = position if num_bytes else UNDEFINED
            if (place, num_bytes) != (expected_place, math.prod(shape) * slot.dtype.itemsize):
                return None
            if not num_bytes:
                absent.append(slot.layout_at)
            crc = array_checksum(slot.name, slot.dtype, shape, content[position : position + num_bytes], crc)
            position += num_bytes + -num_bytes % 8
        return crc, position, absent

    def _read_values(
        self, content: memoryview, address: int, heap_address: int
    ) -> tuple[dict[str, AttributeValue], int]:
        """Return the attributes, and where the episode ends.

        Raises:
            ValueError: If texts are not where `filled` puts them, or are no UTF-8.
        """
        attributes: dict[str, AttributeValue] = {}
        texts: list[bytes] = []
        position = heap_address + HEAP_HEADER_BYTES
        for slot in self._values:
            value = bytes(content[address + slot.at : address + slot.at + slot.num_bytes])
            if slot.dtype is not None:
                attributes[slot.name] = np.frombuffer(value, slot.dtype)[0].item()
                continue
            num_bytes = referenced_bytes(value)
            position += HEAP_ENTRY_BYTES
            texts.append(bytes(content[position : position + num_bytes]))
            position += num_bytes + -num_bytes % 8
            if value != text_reference(num_bytes, heap_address, len(texts)):
                raise ValueError(f"the text '{slot.name}' is in another place")
            attributes[slot.name] = texts[-1].decode()
        heap = text_heap(texts)
        end = heap_address + len(heap)
        if content[heap_address:end] != heap:
            raise ValueError("the texts are not as they were written")
        return attributes, end

    def _pointers_without(self, absent: Sequence[int]) -> np.ndarray:
        return np.setdiff1d(self._all_pointers, absent) if absent else self._all_pointers

    def _structure_at(self, address: int) -> bytes:
        # Files of one job have their episodes at one address.
        if self._moved[0] != address:
            structure = Block(content=self._structure, pointers=np.array(self._pointers, np.int64))
            self._moved = (address, bytes(structure.at(address)))
        return self._moved[1]

    def _add_array(self, array: ArrayType, members: dict[str, dict[str, int]]) -> _ArraySlot:
        path, dtype, rank = array
        header, offsets = object_header(dataset_messages(dtype, rank))
        position = len(self._structure)
        self._structure += header
        parent, _, name = path.rpartition("/")
        members.setdefault(parent, {})[name] = position
        while parent:
            parent = parent.rpartition("/")[0]
            members.setdefault(parent, {})
        return _ArraySlot(
            name=path,
            dtype=dtype,
            shape=struct.Struct(f"<{rank}Q"),
            shape_at=position + offsets[0] + DIMENSIONS_OFFSET,
            layout_at=position + offsets[-1] + LAYOUT_OFFSET,
        )

    def _add_group(
        self, members: Mapping[str, int], attributes: Sequence[AttributeType] = ()
    ) -> tuple[int, list[_ValueSlot]]:
        """Append a group; return its offset, and where the values of its attributes are filled in."""
        position = len(self._structure)
        messages = [attribute_message(*attribute) for attribute in attributes]
        relative = [(name, address - position) for name, address in members.items()]
        block, offsets = group(relative, [message for message, _ in messages])
        self._structure += block.at(position)
        self._pointers += (block.pointers + position).tolist()
        return position, [
            _ValueSlot(name=name, dtype=dtype, at=position + at + inside, num_bytes=value_bytes(dtype))
            for (name, dtype), at, (_, inside) in zip(attributes, offsets, messages, strict=True)
        ]


@lru_cache(maxsize=64)
def template_of(arrays: tuple[ArrayType, ...], attributes: tuple[AttributeType, ...]) -> EpisodeTemplate:
    """Return the structure of episodes, which is worked out once."""
    return EpisodeTemplate(arrays, attributes)
