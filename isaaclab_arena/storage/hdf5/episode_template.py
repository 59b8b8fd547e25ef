"""One episode as HDF5 has it, made without HDF5's library.

An episode has two dozen small arrays and as many attributes, and to create them through the library takes 1.3 ms of CPU
time, once for the episode's file and again for the dataset. But all episodes of a job look alike: their structure is
worked out once, and an episode is a copy of it with sizes, addresses and contents filled in. To move it into another
file, its addresses are shifted. Whatever reads HDF5 reads the result.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.storage.hdf5.format import (
    DIMENSIONS_OFFSET,
    HEAP_ADDRESS_OFFSET,
    HEAP_ENTRY_BYTES,
    HEAP_HEADER_BYTES,
    LAYOUT_OFFSET,
    REFERENCE_BYTES,
    UNDEFINED,
    AttributeType,
    Block,
    attribute_message,
    dataset_messages,
    encoded_item_bytes,
    group,
    object_header,
    referenced_bytes,
    text_heap,
    text_reference,
)

_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True, kw_only=True)
class ArrayType:
    """What an array looks like, other than the sizes of its dimensions.

    Attributes:
        name: Its path below the group of the episode.
        encoded_type: Its element type as HDF5 writes it.
        rank: Number of dimensions.
    """

    name: str
    encoded_type: bytes
    rank: int


@dataclass(frozen=True, kw_only=True)
class EpisodeBlock(Block):
    """The group of an episode and all that is below it.

    Attributes:
        episode_index: Its position in the job, which names its group.
        group_offset: Where in the bytes the object header of the episode's group is.
        num_samples: Control steps of the episode.
        env_args: Text that describes the environment.
    """

    episode_index: int
    group_offset: int
    num_samples: int
    env_args: str


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """What is in the bytes of an episode.

    Attributes:
        shapes: Shape of each array.
        contents: Bytes of each array.
        values: Value of each attribute: its bytes, a text in UTF-8.
        num_bytes: How many bytes the episode has.
        pointers: Where in them the addresses are.
    """

    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[memoryview, ...]
    values: tuple[bytes, ...]
    num_bytes: int
    pointers: np.ndarray


class EpisodeTemplate:
    """The structure of episodes that differ in sizes, contents and values of attributes alone.

    Args:
        arrays: What arrays there are.
        attributes: What attributes the group of the episode has.
    """

    def __init__(self, arrays: Sequence[ArrayType], attributes: Sequence[AttributeType]) -> None:
        self._metadata = bytearray()
        self._dimensions: list[tuple[struct.Struct, int]] = []
        self._layouts: list[int] = []
        self._pointers: list[int] = []
        self._attributes = attributes
        self._item_bytes = [encoded_item_bytes(array.encoded_type) for array in arrays]
        members: dict[str, dict[str, int]] = {"": {}}
        for array in arrays:
            self._add_array(array, members)
        for path in sorted(filter(None, members), key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            members[parent][name] = self._add_group(members[path])[0]
        self._group_offset, self._values = self._add_group(members[""], attributes)
        texts = [at for at, attribute in zip(self._values, attributes, strict=True) if attribute.value_bytes is None]
        addresses = self._layouts + [at + HEAP_ADDRESS_OFFSET for at in texts]
        self._all_pointers = np.array([*addresses, *self._pointers], np.int64)
        self._moved_metadata: tuple[int, bytes] = (0, bytes(self._metadata))
        self._fixed = self._bytes_that_are_fixed()
        self._is_text = [attribute.value_bytes is None for attribute in attributes]

    @property
    def group_offset(self) -> int:
        """Where in an episode's bytes the object header of its group is."""
        return self._group_offset

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
        metadata = bytearray(self._metadata_at(address))
        parts: list[bytes | bytearray | memoryview] = [metadata]
        position = address + len(metadata)
        absent = []
        for array, (dimensions, shape_at), layout_at in zip(arrays, self._dimensions, self._layouts, strict=True):
            dimensions.pack_into(metadata, shape_at, *array.shape)
            num_bytes = array.nbytes
            if num_bytes == 0:
                _PLACE.pack_into(metadata, layout_at, UNDEFINED, 0)
                absent.append(layout_at)
                continue
            _PLACE.pack_into(metadata, layout_at, position, num_bytes)
            parts.append(array.data)
            rest = -num_bytes % 8
            if rest:
                parts.append(bytes(rest))
            position += num_bytes + rest
        texts: list[bytes] = []
        for value, at, attribute in zip(values, self._values, self._attributes, strict=True):
            if attribute.value_bytes is None:
                texts.append(value)
                metadata[at : at + 16] = text_reference(len(value), position, len(texts))
            else:
                metadata[at : at + len(value)] = value
        parts.append(text_heap(texts))
        return parts, self._pointers_without(absent)

    def read_back(self, content: bytes | memoryview, address: int) -> ReadBack | None:
        """Return what `filled` was given, None if these are not bytes that it returns.

        Args:
            content: A file.
            address: Where in it the episode stands.
        """
        metadata = self._metadata_at(address)
        if address + len(metadata) > len(content):
            return None
        found = np.frombuffer(content, np.uint8, len(metadata), address)
        if ((found ^ np.frombuffer(metadata, np.uint8)) & self._fixed).any():
            return None
        view = memoryview(content)
        position = address + len(metadata)
        shapes, contents = [], []
        for (dimensions, shape_at), layout_at, item_bytes in zip(
            self._dimensions, self._layouts, self._item_bytes, strict=True
        ):
            shape = dimensions.unpack_from(content, address + shape_at)
            place, num_bytes = _PLACE.unpack_from(content, address + layout_at)
            if num_bytes != math.prod(shape) * item_bytes or place != (position if num_bytes else UNDEFINED):
                return None
            shapes.append(shape)
            contents.append(view[position : position + num_bytes])
            position += num_bytes + -num_bytes % 8
        values = self._values_of(view, address, position)
        if values is None:
            return None
        heap = text_heap([value for value, is_text in zip(values, self._is_text, strict=True) if is_text])
        if content[position : position + len(heap)] != heap:
            return None
        absent = [layout_at for layout_at, each in zip(self._layouts, contents, strict=True) if not each]
        return ReadBack(
            shapes=tuple(shapes),
            contents=tuple(contents),
            values=values,
            num_bytes=position + len(heap) - address,
            pointers=self._pointers_without(absent),
        )

    def _pointers_without(self, absent: Sequence[int]) -> np.ndarray:
        return np.setdiff1d(self._all_pointers, absent) if absent else self._all_pointers

    def _values_of(self, content: memoryview, address: int, heap_address: int) -> tuple[bytes, ...] | None:
        """Return the values of the attributes, None if texts are not where `filled` puts them."""
        values: list[bytes] = []
        position, number = heap_address + HEAP_HEADER_BYTES, 0
        for at, attribute in zip(self._values, self._attributes, strict=True):
            value = bytes(content[address + at : address + at + (attribute.value_bytes or REFERENCE_BYTES)])
            if attribute.value_bytes is None:
                number += 1
                num_bytes = referenced_bytes(value)
                position += HEAP_ENTRY_BYTES
                if value != text_reference(num_bytes, heap_address, number):
                    return None
                value = bytes(content[position : position + num_bytes])
                position += num_bytes + -num_bytes % 8
            values.append(value)
        return tuple(values)

    def _bytes_that_are_fixed(self) -> np.ndarray:
        """Return 255 for each byte of the metadata that is the same in all episodes, otherwise 0."""
        fixed = np.full(len(self._metadata), 255, np.uint8)
        places = [(shape_at, dimensions.size) for dimensions, shape_at in self._dimensions]
        places += [(layout_at, _PLACE.size) for layout_at in self._layouts]
        places += [
            (at, REFERENCE_BYTES if attribute.value_bytes is None else attribute.value_bytes)
            for at, attribute in zip(self._values, self._attributes, strict=True)
        ]
        for at, num_bytes in places:
            fixed[at : at + num_bytes] = 0
        return fixed

    def _metadata_at(self, address: int) -> bytes:
        # Files of one job have their episodes at one address.
        if self._moved_metadata[0] != address:
            structure = Block(content=self._metadata, pointers=np.array(self._pointers, np.int64))
            self._moved_metadata = (address, bytes(structure.at(address)))
        return self._moved_metadata[1]

    def _add_array(self, array: ArrayType, members: dict[str, dict[str, int]]) -> None:
        header, offsets = object_header(dataset_messages(array.encoded_type, array.rank))
        position = len(self._metadata)
        self._metadata += header
        self._dimensions.append((struct.Struct(f"<{array.rank}Q"), position + offsets[0] + DIMENSIONS_OFFSET))
        self._layouts.append(position + offsets[-1] + LAYOUT_OFFSET)
        parent, _, name = array.name.rpartition("/")
        members.setdefault(parent, {})[name] = position
        while parent:
            parent = parent.rpartition("/")[0]
            members.setdefault(parent, {})

    def _add_group(
        self, members: Mapping[str, int], attributes: Sequence[AttributeType] = ()
    ) -> tuple[int, tuple[int, ...]]:
        """Append a group; return its offset, and the offsets of the values of its attributes."""
        position = len(self._metadata)
        messages = [attribute_message(attribute) for attribute in attributes]
        relative = [(name, address - position) for name, address in members.items()]
        block, offsets = group(relative, [message for message, _ in messages])
        self._metadata += block.at(position)
        self._pointers += (block.pointers + position).tolist()
        values = tuple(position + at + inside for at, (_, inside) in zip(offsets, messages, strict=True))
        return position, values
