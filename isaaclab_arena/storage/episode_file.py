"""A recorded episode, and its file in HDF5's own bytes: structures, template, image."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from importlib import util
from itertools import pairwise
from typing import Any, TypeAlias

import h5py
import numpy as np
from pydantic import ValidationError

from isaaclab_arena.errors import ConfigError, DamagedFileError
from isaaclab_arena.storage.atomic import adapter, json_line
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.layout import CONTENTS_ATTRIBUTE, DATA_GROUP, demo_name

AttributeValue: TypeAlias = str | int | float | bool
Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Path below the episode's group, such as ``obs/robot_joint_pos``, to array."""


class Compression(StrEnum):
    """The compression of arrays. ``ZSTD`` needs the package hdf5plugin, also in programs that read the file."""

    NONE = "none"
    LZF = "lzf"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One recorded episode.

    Attributes:
        episode_index: Position of the episode in the job, which names its group.
        arrays: ``actions`` of shape (num_samples, action_dim), and all other recorded arrays.
        attributes: Attributes of the episode's group. The writer adds ``num_samples`` and ``checksum``.
        env_args: Content of the attribute ``env_args`` of ``/data``.
    """

    episode_index: int
    arrays: Arrays
    attributes: Mapping[str, AttributeValue]
    env_args: Mapping[str, Any]

    @property
    def provenance(self) -> Mapping[str, str]:
        """Versions, processor, model and other facts at the time of the recording; empty if not recorded."""
        return parsed_mapping(self.attributes.get("provenance", "{}"), "the provenance")

    @property
    def contents(self) -> Contents | None:
        """The evaluated contents, None if they were not recorded or are not readable."""
        try:
            return adapter(Contents).validate_json(str(self.attributes.get(CONTENTS_ATTRIBUTE, "")))
        except ValidationError:
            return None


_MAX_SAMPLES = 1 << 40  # so that the steps of all episodes of a file fit into the 64 bits that it has for them
JSON_ATTRIBUTES = ("conditions", "metrics", "provenance")  # attributes of an episode that hold a JSON object as text


def parsed_mapping(text: object, what: str) -> Mapping[str, Any]:
    """Return the JSON object of an attribute; `what` names it in messages. DamagedFileError if it is not an object."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{what} is no JSON object but a {type(value).__name__}")
    return value


def num_samples_of(attributes: Mapping[str, AttributeValue]) -> int:
    """Return an episode's number of control steps. ValueError if it is missing or invalid."""
    number = attributes.get("num_samples")
    if not isinstance(number, int) or not 0 <= number <= _MAX_SAMPLES:
        raise ValueError(f"an episode says that it has {number} control steps")
    return number


def checksum(arrays: Arrays) -> int:
    """Return the CRC-32 of the arrays' names, types, shapes and contents, in order of the names."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        described = _description(name, array.dtype, array.shape).encode()
        crc = zlib.crc32(array.data if array.size else b"", zlib.crc32(described, crc))
    return crc


# The episodes of a job have the same arrays, with a few lengths.
_description = lru_cache(maxsize=1024)("{} {.str} {}".format)


# The bytes of HDF5's structures, according to its format specification 3.0; pure functions, no file.
#
# Only element types come from HDF5's library, which can encode each dtype of numpy.
#
# The subset is that of a recording: contiguous datasets, groups and scalar attributes in the format's first version,
# which h5py writes by default and every reader reads. Addresses have 8 bytes and count from the start of the file.

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_BYTES = 96
UNDEFINED = 2**64 - 1  # the address of an absent object, such as the content of an empty array
NAMES_PER_NODE = 8
CHILDREN_PER_NODE = 32
DIMENSIONS_OFFSET = 8  # offset of the sizes of the dimensions in the first message of a dataset, 8 bytes each
LAYOUT_OFFSET = 2  # offset of the address and the size of the content in the last message of a dataset, 8 bytes each
HEAP_ADDRESS_OFFSET = 4  # offset of the heap's address in the value of a text attribute
_DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _ATTRIBUTE, _SYMBOL_TABLE = 0x01, 0x03, 0x05, 0x08, 0x0C, 0x11
_DATASPACE_START = struct.Struct("<BBB5x")  # version, number of dimensions, flags; their sizes follow, 8 bytes each
_MAX_MESSAGE_BYTES = 65_528
# Allocate on first write, fill with zeros: the library's default.
_DEFAULT_FILL = bytes((2, 2, 2, 1, 0, 0, 0, 0))
_MIN_HEAP_BYTES = 4096
_HEAP_ENTRY = struct.Struct("<HHIQ")
_NO_FREE_BLOCK = 1
TEXT_REFERENCE = struct.Struct("<IQI")  # a text attribute: size of the text, address of its heap, number in it
HEAP_HEADER_BYTES = 16
HEAP_ENTRY_BYTES = _HEAP_ENTRY.size
_BYTES_OF_ADDRESS = np.arange(8)

Message: TypeAlias = tuple[int, bytes]
"""One message of an object header: its number in the specification, and its content without padding."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Bytes that can be placed anywhere in a file."""

    content: bytes | bytearray | memoryview
    pointers: np.ndarray  # offsets of the addresses in `content`. Shape: (n,), int64
    origin: int = 0  # file address of the first byte that the stored addresses assume

    def at(self, address: int) -> bytearray:
        """Return the bytes relocated to an address of a file."""
        return bytearray().join(self.pieces_at(address))

    def pieces_at(self, address: int) -> tuple[bytearray, memoryview]:
        """Return the relocated bytes in two pieces; the second holds no addresses and is not a copy."""
        end = int(self.pointers.max(initial=-8)) + 8
        changed = bytearray(self.content[:end])
        view = np.frombuffer(changed, np.uint8)
        places = self.pointers[:, None] + _BYTES_OF_ADDRESS
        view[places] = (view[places].view("<u8") + np.uint64((address - self.origin) % 2**64)).view(np.uint8)
        return changed, memoryview(self.content)[end:]


def padded(content: bytes) -> bytes:
    """Pad bytes with zeros to a multiple of 8, HDF5's alignment."""
    return content + bytes(-len(content) % 8)


def superblock(*, root_address: int, end_address: int) -> bytes:
    """Return the first 96 bytes of a file: address of the root group's header, and size of the file [bytes]."""
    versions = bytes((0, 0, 0, 0, 0, 8, 8, 0))
    numbers = struct.pack("<HHI", NAMES_PER_NODE // 2, CHILDREN_PER_NODE // 2, 0)
    addresses = struct.pack("<4Q", 0, UNDEFINED, end_address, UNDEFINED)
    return SIGNATURE + versions + numbers + addresses + struct.pack("<QQII16x", 0, root_address, 0, 0)


def object_header(messages: Sequence[Message]) -> tuple[bytes, tuple[int, ...]]:
    """Return an object header, and the offset of each message's content in it."""
    parts, offsets, position = [], [], 16
    for kind, unpadded in messages:
        content = padded(unpadded)
        if len(content) > _MAX_MESSAGE_BYTES:
            raise ValueError(f"an object header message of {len(content)} bytes does not fit")
        parts.append(struct.pack("<HHB3x", kind, len(content), 0) + content)
        offsets.append(position + 8)
        position += 8 + len(content)
    prefix = struct.pack("<BxHIIxxxx", 1, len(messages), 1, position - 16)
    return prefix + b"".join(parts), tuple(offsets)


def attribute_message(name: str, dtype: np.dtype | None) -> tuple[Message, int]:
    """Return the message of a scalar attribute with a zero value, and the offset of that value. None for text."""
    encoded_name, kind, space = name.encode() + b"\0", _encoded_type(dtype), _DATASPACE_START.pack(1, 0, 0)
    head = struct.pack("<BxHHH", 1, len(encoded_name), len(kind), len(space))
    head += padded(encoded_name) + padded(kind) + padded(space)
    # A text is stored there as a reference.
    num_bytes = TEXT_REFERENCE.size if dtype is None else dtype.itemsize
    return (_ATTRIBUTE, head + bytes(num_bytes)), len(head)


def group(members: Sequence[tuple[str, int]], messages: Sequence[Message] = ()) -> tuple[Block, tuple[int, ...]]:
    """Return a group, and the offset of each further message's content. Members are names and addresses."""
    # Members' addresses are relative to the group, so earlier objects have negative ones. `messages` are attributes.
    header, offsets = object_header(((_SYMBOL_TABLE, bytes(16)), *messages))
    by_name = sorted((name.encode(), address) for name, address in members)

    # A local heap holds the names after an empty one.
    names, name_offsets = bytearray(8), []
    for name, _ in by_name:
        name_offsets.append(len(names))
        names += padded(name + b"\0")
    content = bytearray(header)
    tree_at, heap_at = offsets[0], offsets[0] + 8
    pointers = [tree_at, heap_at, len(content) + 24]
    struct.pack_into("<Q", content, heap_at, len(content))
    content += b"HEAP" + struct.pack("<B3xQQQ", 0, len(names), _NO_FREE_BLOCK, len(content) + 32)
    content += names

    # The leaves of the group's tree, each with its address and the offset of its last name.
    nodes = []
    for first in range(0, len(by_name), NAMES_PER_NODE):
        part = range(first, min(first + NAMES_PER_NODE, len(by_name)))
        nodes.append((len(content), name_offsets[part[-1]]))
        content += b"SNOD" + struct.pack("<BxH", 1, len(part))
        for index in part:
            pointers.append(len(content) + 8)
            content += struct.pack("<QQII16x", name_offsets[index], by_name[index][1] % 2**64, 0, 0)
        content += bytes(40 * (NAMES_PER_NODE - len(part)))

    # Levels of the tree, until one root remains.
    level = 0
    while level == 0 or len(nodes) > 1:
        children, nodes, last_name = nodes, [], 0
        for first in range(0, max(1, len(children)), CHILDREN_PER_NODE):
            part = children[first : first + CHILDREN_PER_NODE]
            start = len(content)
            content += b"TREE" + struct.pack("<BBHQQ", 0, level, len(part), UNDEFINED, UNDEFINED)
            content += struct.pack("<Q", last_name)
            for address, last_name in part:
                pointers.append(len(content))
                content += struct.pack("<QQ", address, last_name)
            content += bytes(16 * (CHILDREN_PER_NODE - len(part)))
            nodes.append((start, last_name))
        # Each node knows its left and its right sibling.
        for (left, _), (right, _) in pairwise(nodes):
            for at, address in ((left + 16, right), (right + 8, left)):
                struct.pack_into("<Q", content, at, address)
                pointers.append(at)
        level += 1
    struct.pack_into("<Q", content, tree_at, nodes[0][0])
    return Block(content=content, pointers=np.array(pointers, np.int64)), offsets[1:]


def text_heap(texts: Sequence[bytes]) -> bytes:
    """Return a global heap of texts, numbered from 1."""
    pieces = [b""]
    used = HEAP_HEADER_BYTES
    for number, text in enumerate(texts, start=1):
        num_bytes = len(text)
        padding = -num_bytes % 8
        pieces += (_HEAP_ENTRY.pack(number, 0, 0, num_bytes), text, bytes(padding))
        used += HEAP_ENTRY_BYTES + num_bytes + padding
    # The rest of the heap is one free entry, which needs room for its own header.
    size = max(used, _MIN_HEAP_BYTES)
    if 0 < size - used < HEAP_ENTRY_BYTES:
        size = used + HEAP_ENTRY_BYTES
    if size > used:
        pieces += (_HEAP_ENTRY.pack(0, 0, 0, size - used), bytes(size - used - HEAP_ENTRY_BYTES))
    pieces[0] = b"GCOL" + struct.pack("<B3xQ", 1, size)
    return b"".join(pieces)


@cache
def _encoded_type(dtype: np.dtype | None) -> bytes:
    """Return HDF5's encoding of an element type; None for text of variable length."""
    in_memory = h5py.string_dtype() if dtype is None else dtype
    # The library prepends two bytes of its own.
    encoded = h5py.h5t.py_create(in_memory, logical=True).encode()[2:]
    # Text is an address in memory, but a reference in a file.
    return encoded if dtype is not None else encoded[:4] + struct.pack("<I", TEXT_REFERENCE.size) + encoded[8:]


# The structure that all episodes of a job share, in HDF5's format.
#
# HDF5's library takes 1 to 3 ms to write the two dozen small arrays and as many attributes of an episode. But the
# episodes of a job differ only in sizes, contents and attribute values. Their structure is derived once, and each
# episode is a copy of it with the rest filled in. Any HDF5 reader reads the result.

ArrayType: TypeAlias = tuple[str, np.dtype, int]
"""Path of an array below the group of its episode, element type, and number of dimensions."""
AttributeType: TypeAlias = tuple[str, np.dtype | None]  # name of an attribute and its type; None for a text
_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True)
class _ArraySlot:
    """The offsets of an array's shape and layout in the structure."""

    name: str
    dtype: np.dtype
    shape: struct.Struct
    shape_at: int
    layout_at: int


@dataclass(frozen=True, kw_only=True)
class _ValueSlot:
    """The offset of an attribute's value in the structure."""

    name: str
    dtype: np.dtype | None
    at: int
    num_bytes: int


class EpisodeTemplate:
    """The structure of episodes that differ only in sizes, contents and attribute values."""

    def __init__(self, arrays: Sequence[ArrayType], attributes: Sequence[AttributeType]) -> None:
        # `arrays` are sorted by name. `group_offset` is the offset of the episode group's header in an episode's bytes.
        self._structure = bytearray()
        self._pointers: list[int] = []
        self._arrays: list[_ArraySlot] = []
        members: dict[str, dict[str, int]] = {"": {}}
        for path, dtype, rank in arrays:
            messages = (
                (_DATASPACE, _DATASPACE_START.pack(1, rank, 0) + bytes(8 * rank)),
                (_DATATYPE, _encoded_type(dtype)),
                (_FILL_VALUE, _DEFAULT_FILL),
                (_LAYOUT, bytes((3, 1)) + bytes(16)),
            )
            header, offsets = object_header(messages)
            position = len(self._structure)
            self._structure += header
            shape_at, layout_at = position + offsets[0] + DIMENSIONS_OFFSET, position + offsets[-1] + LAYOUT_OFFSET
            self._arrays.append(_ArraySlot(path, dtype, struct.Struct(f"<{rank}Q"), shape_at, layout_at))
            parent, _, name = path.rpartition("/")
            members.setdefault(parent, {})[name] = position
            while parent:
                parent = parent.rpartition("/")[0]
                members.setdefault(parent, {})
        # A group stores the addresses of its members, so the deepest groups come first.
        for path in sorted(filter(None, members), key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            members[parent][name], _ = self._add_group(members[path])
        self.group_offset, self._values = self._add_group(members[""], attributes)
        addresses = [slot.layout_at for slot in self._arrays]
        addresses += [slot.at + HEAP_ADDRESS_OFFSET for slot in self._values if slot.dtype is None]
        self._all_pointers = np.array([*addresses, *self._pointers], np.int64)
        self.max_pointers = len(self._all_pointers)  # addresses in an episode without empty arrays
        self._moved: tuple[int, bytes] = (0, bytes(self._structure))

    def filled(
        self, arrays: Sequence[np.ndarray], values: Sequence[bytes], address: int
    ) -> tuple[list[bytes | bytearray | memoryview], np.ndarray]:
        """Return an episode's bytes in pieces, and the offsets of their addresses, for the file address `address`."""
        # Arrays are contiguous, one per `ArrayType`. Values are bytes, one per `AttributeType`; text is UTF-8.
        structure = bytearray(self._structure_at(address))
        pieces: list[bytes | bytearray | memoryview] = [structure]
        position, absent = address + len(structure), []
        for array, slot in zip(arrays, self._arrays, strict=True):
            num_bytes, padding = array.nbytes, -array.nbytes % 8
            slot.shape.pack_into(structure, slot.shape_at, *array.shape)
            _PLACE.pack_into(structure, slot.layout_at, position if num_bytes else UNDEFINED, num_bytes)
            # HDF5 stores the undefined address for an empty array, and that one must not be relocated.
            if num_bytes == 0:
                absent.append(slot.layout_at)
            pieces += (array.data, bytes(padding))
            position += num_bytes + padding
        texts: list[bytes] = []
        for value, slot in zip(values, self._values, strict=True):
            stored = value
            if slot.dtype is None:
                texts.append(value)
                stored = TEXT_REFERENCE.pack(len(value), position, len(texts))
            structure[slot.at : slot.at + slot.num_bytes] = stored
        pieces.append(text_heap(texts))
        return pieces, np.setdiff1d(self._all_pointers, absent) if absent else self._all_pointers

    def _structure_at(self, address: int) -> bytes:
        # Files of one job have their episodes at the same address.
        if self._moved[0] != address:
            structure = Block(content=self._structure, pointers=np.array(self._pointers, np.int64))
            self._moved = (address, bytes(structure.at(address)))
        return self._moved[1]

    def _add_group(
        self, members: Mapping[str, int], attributes: Sequence[AttributeType] = ()
    ) -> tuple[int, list[_ValueSlot]]:
        """Append a group, and return its offset and the slots of its attributes' values."""
        position = len(self._structure)
        messages = [attribute_message(*attribute) for attribute in attributes]
        relative = [(name, address - position) for name, address in members.items()]
        block, offsets = group(relative, [message for message, _ in messages])
        self._structure += block.at(position)
        self._pointers += (block.pointers + position).tolist()
        return position, [
            _ValueSlot(name=name, dtype=dtype, at=position + at + inside, num_bytes=len(message[1]) - inside)
            for (name, dtype), at, (message, inside) in zip(attributes, offsets, messages, strict=True)
        ]


template_of = lru_cache(maxsize=64)(EpisodeTemplate)
"""Returns the structure of episodes, cached; both arguments are tuples."""


# Whole files as bytes: the file of one episode, and the groups above the episodes of a dataset.
#
# An episode's file begins with an index that HDF5 ignores: the position of the episode, the offsets of its addresses,
# and a CRC-32 of everything behind it. So each file is read once for a dataset, and a file with a changed bit is not
# taken over.

_SIGNATURE = b"ARENAEP1"
_INDEX = struct.Struct("<8sIIQQQQQQQ")
_INDEX_ADDRESS = SUPERBLOCK_BYTES
_CHECKED_FROM = _INDEX_ADDRESS + 12
_POINTERS_ADDRESS = _INDEX_ADDRESS + _INDEX.size

# Placeholders in the opening of episode files for an episode's name and its number of control steps.
_NAME = demo_name(0) + "#" * (31 - len(demo_name(0)))
_TOTAL = b"#TOTAL##"


@dataclass(frozen=True, kw_only=True)
class EpisodeBlock(Block):
    """The group of an episode with all its descendants."""

    episode_index: int  # position in the job, which names the group
    group_offset: int  # offset of the group's object header in `content`
    num_samples: int  # control steps
    env_args: str  # JSON description of the environment


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """The bytes before the episode in its file, with placeholders for the values of the single episode."""

    content: bytes  # its length is the address of the episode
    root_address: int  # address of the root group
    name_at: int  # offset of the group's name
    total_at: int  # offset of the number of control steps
    env_args_at: int  # offset of the environment's description
    env_args_bytes: int  # length of that description


def episode_file(
    template: EpisodeTemplate,
    arrays: Sequence[np.ndarray],
    values: Sequence[bytes],
    *,
    env_args: str,
    episode_index: int,
    num_samples: int,
) -> bytearray:
    """Return the file of one episode; see `EpisodeTemplate.filled` for `arrays` and `values`."""
    opening = _opening(template.max_pointers, template.group_offset, env_args)
    address = len(opening.content)
    parts, pointers = template.filled(arrays, values, address)
    content = bytearray().join((opening.content, *parts))
    content[:SUPERBLOCK_BYTES] = superblock(root_address=opening.root_address, end_address=len(content))
    name = demo_name(episode_index).encode()
    content[opening.name_at : opening.name_at + len(_NAME)] = name.ljust(len(_NAME), b"\0")
    struct.pack_into("<q", content, opening.total_at, num_samples)
    # The index comes last: it holds the pointers and the CRC of the finished content.
    places = (address, opening.env_args_at, opening.env_args_bytes, template.group_offset)
    _INDEX.pack_into(
        content, _INDEX_ADDRESS, _SIGNATURE, 0, len(pointers), len(content), *places, episode_index, num_samples
    )
    content[_POINTERS_ADDRESS : _POINTERS_ADDRESS + 4 * len(pointers)] = pointers.astype("<u4").tobytes()
    struct.pack_into("<I", content, _CHECKED_FROM - 4, zlib.crc32(memoryview(content)[_CHECKED_FROM:]))
    return content


@lru_cache(maxsize=64)
def _opening(max_pointers: int, group_offset: int, env_args: str) -> _Opening:
    before = padded(bytes(_POINTERS_ADDRESS + 4 * max_pointers))
    # The size of these groups does not depend on the address of the episode, which follows them.
    text = env_args.encode()
    above, _ = groups_above({_NAME: 0}, text, _TOTAL, len(before))
    address = len(before) + len(above)
    above, root_address = groups_above({_NAME: address + group_offset}, text, _TOTAL, len(before))
    content = before + above
    return _Opening(
        content=content,
        root_address=root_address,
        name_at=content.index(_NAME.encode()),
        total_at=content.index(_TOTAL),
        env_args_at=content.index(text),
        env_args_bytes=len(text),
    )


def block_of(content: bytes | bytearray) -> EpisodeBlock | None:
    """Return the episode of a file that `episode_file` made, None for another or a changed file."""
    if len(content) < _POINTERS_ADDRESS:
        return None
    signature, crc, num_pointers, num_bytes, *numbers = _INDEX.unpack_from(content, _INDEX_ADDRESS)
    if (signature, num_bytes) != (_SIGNATURE, len(content)) or crc != zlib.crc32(memoryview(content)[_CHECKED_FROM:]):
        return None
    position, env_args_at, env_args_bytes, group_offset, episode_index, num_samples = numbers
    return EpisodeBlock(
        content=memoryview(content)[position:],
        pointers=np.frombuffer(content, "<u4", num_pointers, _POINTERS_ADDRESS).astype(np.int64),
        origin=position,
        episode_index=episode_index,
        group_offset=group_offset,
        num_samples=num_samples,
        env_args=bytes(content[env_args_at : env_args_at + env_args_bytes]).decode(),
    )


def groups_above(members: Mapping[str, int], env_args: bytes, total: bytes, position: int) -> tuple[bytes, int]:
    """Return the episodes' group and the root group for address `position`, and the root group's address."""
    messages = [attribute_message("total", np.dtype(np.int64)), attribute_message("env_args", None)]
    relative = [(name, address - position) for name, address in members.items()]
    block, offsets = group(relative, [message for message, _ in messages])
    content = block.at(position)
    values = (total, TEXT_REFERENCE.pack(len(env_args), position + len(content), 1))
    for value, at, (_, inside) in zip(values, offsets, messages, strict=True):
        content[at + inside : at + inside + len(value)] = value
    content += text_heap([env_args])
    root, _ = group([(DATA_GROUP, -len(content))])
    root_address = position + len(content)
    return bytes(content + root.at(root_address)), root_address


ZSTD_FILTER = 32015
CHUNK_BYTES = 1 << 20
CHUNK_LENGTH = 20
_FILTERS: Mapping[Compression, Mapping[str, Any]] = {
    Compression.LZF: {"compression": "lzf"},
    Compression.GZIP: {"compression": "gzip", "compression_opts": 1},
    Compression.ZSTD: {"compression": ZSTD_FILTER, "compression_opts": (1,)},
}


def check_compression(compression: Compression) -> None:
    """Refuse a compression whose package is not installed with a ConfigError."""
    if compression is Compression.ZSTD and util.find_spec("hdf5plugin") is None:
        raise ConfigError(
            "compression 'zstd' needs the package hdf5plugin: pip install 'isaaclab-arena-mujoco[zstd]', or choose gzip"
        )


def compressed_episode_file(
    episode: RecordedEpisode, attributes: Mapping[str, AttributeValue], compression: Compression
) -> bytes:
    """Return the file of one episode. `attributes` include ``num_samples``."""
    if compression is Compression.ZSTD:
        check_compression(compression)
        # The import only registers the filter, and takes longer than the import of this whole module.
        import hdf5plugin  # noqa: F401, PLC0415  optional package

    # Built in memory and written at once: a twentieth of the system calls, and no lock on a network file system.
    with h5py.File("episode", "w", driver="core", backing_store=False, block_size=1 << 16) as file:
        data = file.create_group(DATA_GROUP)
        data.attrs["total"] = attributes["num_samples"]
        data.attrs["env_args"] = json_line(episode.env_args)
        group = data.create_group(demo_name(episode.episode_index))
        for name, value in attributes.items():
            # A member of an enumeration is a text too.
            group.attrs.create(name, value, dtype=h5py.string_dtype() if isinstance(value, str) else None)
        for name in sorted(episode.arrays):
            array, options = np.ascontiguousarray(episode.arrays[name]), dict[str, Any]()
            if array.size:
                length = CHUNK_LENGTH if array.ndim > 2 else max(1, CHUNK_BYTES * len(array) // array.nbytes)
                options = {"chunks": (min(len(array), length), *array.shape[1:]), **_FILTERS[compression]}
            group.create_dataset(name, data=array, **options)
        file.flush()
        return file.id.get_file_image()
