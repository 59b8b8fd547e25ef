"""The bytes of HDF5's structures, as its format specification 3.0 has them; pure functions, no file.

Only element types come from HDF5's library, which knows how to write down each type of numpy.

Only what a recording is made of: contiguous datasets, groups and scalar attributes in the format's first version, which
is what h5py writes by default and every reader reads. Addresses are 8 bytes and count from the start of the file.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import h5py
import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_BYTES = 96
UNDEFINED = 2**64 - 1
"""The address of what is not there, such as the content of an empty array."""

NAMES_PER_NODE = 8
CHILDREN_PER_NODE = 32
DIMENSIONS_OFFSET = 8
"""Where in the first message of a dataset the sizes of its dimensions are, 8 bytes each."""
LAYOUT_OFFSET = 2
"""Where in the last message of a dataset address and size of its content are, 8 bytes each."""
HEAP_ADDRESS_OFFSET = 4
"""Where in the value of a text attribute the address of the heap is that holds the text."""

_DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _ATTRIBUTE, _SYMBOL_TABLE = 0x01, 0x03, 0x05, 0x08, 0x0C, 0x11
_MAX_MESSAGE_BYTES = 65_528
# Allocated when first written, filled with zeros where it is not written: the library's default.
_DEFAULT_FILL = bytes((2, 2, 2, 1, 0, 0, 0, 0))
_MIN_HEAP_BYTES = 4096
_HEAP_ENTRY = struct.Struct("<HHIQ")
_NO_FREE_BLOCK = 1
_TEXT = struct.Struct("<IQI")
HEAP_HEADER_BYTES = 16
HEAP_ENTRY_BYTES = _HEAP_ENTRY.size
_BYTES_OF_ADDRESS = np.arange(8)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of an object header.

    Attributes:
        kind: Its number in the specification.
        content: Its bytes, before padding.
    """

    kind: int
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Block:
    """Bytes that can be put anywhere in a file.

    Attributes:
        content: The bytes.
        pointers: Where in them the addresses are. Shape: (n,), int64.
        origin: The address that stands for the start of the bytes, in the addresses that they hold.
    """

    content: bytes | bytearray | memoryview
    pointers: np.ndarray
    origin: int = 0

    def at(self, address: int) -> bytearray:
        """Return the bytes as they are to stand at an address of a file."""
        return bytearray().join(self.pieces_at(address))

    def pieces_at(self, address: int) -> tuple[bytearray, memoryview]:
        """Return the same in two pieces, of which the second, without addresses, is no copy."""
        end = int(self.pointers.max(initial=-8)) + 8
        changed = bytearray(self.content[:end])
        view = np.frombuffer(changed, np.uint8)
        places = self.pointers[:, None] + _BYTES_OF_ADDRESS
        view[places] = (view[places].view("<u8") + np.uint64((address - self.origin) % 2**64)).view(np.uint8)
        return changed, memoryview(self.content)[end:]


def padded(content: bytes) -> bytes:
    """Return bytes with zeros up to a multiple of 8, to which HDF5 aligns everything."""
    return content + bytes(-len(content) % 8)


def superblock(*, root_address: int, end_address: int) -> bytes:
    """Return the first 96 bytes of a file.

    Args:
        root_address: Where the object header of the root group is.
        end_address: Size of the file.
    """
    versions = bytes((0, 0, 0, 0, 0, 8, 8, 0))
    numbers = struct.pack("<HHI", NAMES_PER_NODE // 2, CHILDREN_PER_NODE // 2, 0)
    addresses = struct.pack("<4Q", 0, UNDEFINED, end_address, UNDEFINED)
    return SIGNATURE + versions + numbers + addresses + struct.pack("<QQII16x", 0, root_address, 0, 0)


def object_header(messages: Sequence[Message]) -> tuple[bytes, tuple[int, ...]]:
    """Return an object header, and the offset in it at which the content of each message starts."""
    parts, offsets, position = [], [], 16
    for message in messages:
        content = padded(message.content)
        if len(content) > _MAX_MESSAGE_BYTES:
            raise ValueError(f"an object header message of {len(content)} bytes does not fit")
        parts.append(struct.pack("<HHB3x", message.kind, len(content), 0) + content)
        offsets.append(position + 8)
        position += 8 + len(content)
    prefix = struct.pack("<BxHIIxxxx", 1, len(messages), 1, position - 16)
    return prefix + b"".join(parts), tuple(offsets)


def dataset_messages(dtype: np.dtype, rank: int) -> tuple[Message, ...]:
    """Return the messages of a contiguous dataset; its sizes and where its content is are left zero.

    See `DIMENSIONS_OFFSET` and `LAYOUT_OFFSET`.
    """
    return (
        Message(kind=_DATASPACE, content=_dataspace(rank)),
        Message(kind=_DATATYPE, content=_encoded_type(dtype)),
        Message(kind=_FILL_VALUE, content=_DEFAULT_FILL),
        Message(kind=_LAYOUT, content=bytes((3, 1)) + bytes(16)),
    )


def attribute_message(name: str, dtype: np.dtype | None) -> tuple[Message, int]:
    """Return the message of a scalar attribute whose value is left zero, and the offset of that value in it.

    Args:
        name: Its name.
        dtype: Its type, None for a text.
    """
    encoded_name, kind, space = name.encode() + b"\0", _encoded_type(dtype), _dataspace(0)
    head = struct.pack("<BxHHH", 1, len(encoded_name), len(kind), len(space))
    head += padded(encoded_name) + padded(kind) + padded(space)
    return Message(kind=_ATTRIBUTE, content=head + bytes(value_bytes(dtype))), len(head)


def value_bytes(dtype: np.dtype | None) -> int:
    """Return how many bytes the value of an attribute takes in its message; a text is a reference there."""
    return _TEXT.size if dtype is None else dtype.itemsize


def group(members: Sequence[tuple[str, int]], messages: Sequence[Message] = ()) -> tuple[Block, tuple[int, ...]]:
    """Return a group, and the offset in it at which the content of each of the further messages starts.

    Args:
        members: Name and address of each member, counted from where the group will stand, so what lies before it has
            a negative one.
        messages: Further messages of its header: its attributes.
    """
    header, offsets = object_header((Message(kind=_SYMBOL_TABLE, content=bytes(16)), *messages))
    by_name = sorted((name.encode(), address) for name, address in members)
    names, name_offsets = _name_heap([name for name, _ in by_name])
    content = bytearray(header)
    tree_at, heap_at = offsets[0], offsets[0] + 8
    pointers = [tree_at, heap_at, len(content) + 24]
    struct.pack_into("<Q", content, heap_at, len(content))
    content += b"HEAP" + struct.pack("<B3xQQQ", 0, len(names), _NO_FREE_BLOCK, len(content) + 32)
    content += names
    nodes = _symbol_nodes(content, pointers, by_name, name_offsets)
    level = 0
    nodes = _tree_nodes(content, pointers, nodes, level)
    while len(nodes) > 1:
        level += 1
        nodes = _tree_nodes(content, pointers, nodes, level)
    struct.pack_into("<Q", content, tree_at, nodes[0][0])
    return Block(content=content, pointers=np.array(pointers, np.int64)), offsets[1:]


def text_reference(num_bytes: int, heap_address: int, number: int) -> bytes:
    """Return the value of a text attribute: size of the text, the heap that holds it, and its number there."""
    return _TEXT.pack(num_bytes, heap_address, number)


def text_heap(texts: Sequence[bytes]) -> bytes:
    """Return a global heap that holds texts, the first under number 1."""
    pieces = [b""]
    used = HEAP_HEADER_BYTES
    for number, text in enumerate(texts, start=1):
        num_bytes = len(text)
        padding = -num_bytes % 8
        pieces += (_HEAP_ENTRY.pack(number, 0, 0, num_bytes), text, bytes(padding))
        used += HEAP_ENTRY_BYTES + num_bytes + padding
    size = max(used, _MIN_HEAP_BYTES)
    if 0 < size - used < HEAP_ENTRY_BYTES:
        size = used + HEAP_ENTRY_BYTES
    if size > used:
        pieces += (_HEAP_ENTRY.pack(0, 0, 0, size - used), bytes(size - used - HEAP_ENTRY_BYTES))
    pieces[0] = b"GCOL" + struct.pack("<B3xQ", 1, size)
    return b"".join(pieces)


def referenced_bytes(reference: bytes) -> int:
    """Return the size of the text that a `text_reference` refers to."""
    return _TEXT.unpack(reference)[0]


@cache
def _encoded_type(dtype: np.dtype | None) -> bytes:
    """Return an element type as HDF5 writes it; None stands for a text of any length."""
    in_memory = h5py.string_dtype() if dtype is None else dtype
    # The library puts two bytes of its own before it.
    encoded = h5py.h5t.py_create(in_memory, logical=True).encode()[2:]
    # A text is an address in memory, and in a file a reference.
    return encoded if dtype is not None else encoded[:4] + struct.pack("<I", _TEXT.size) + encoded[8:]


def _dataspace(rank: int) -> bytes:
    return struct.pack("<BBB5x", 1, rank, 0) + bytes(8 * rank)


def _name_heap(names: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Return the names after an empty one, and the offset of each."""
    content, offsets = bytearray(8), []
    for name in names:
        offsets.append(len(content))
        content += padded(name + b"\0")
    return bytes(content), offsets


def _symbol_nodes(
    content: bytearray, pointers: list[int], members: Sequence[tuple[bytes, int]], name_offsets: Sequence[int]
) -> list[tuple[int, int]]:
    """Append the leaves of a group's tree; return the address of each, and where its last name is."""
    nodes = []
    for first in range(0, len(members), NAMES_PER_NODE):
        part = range(first, min(first + NAMES_PER_NODE, len(members)))
        nodes.append((len(content), name_offsets[part[-1]]))
        content += b"SNOD" + struct.pack("<BxH", 1, len(part))
        for index in part:
            pointers.append(len(content) + 8)
            content += struct.pack("<QQII16x", name_offsets[index], members[index][1] % 2**64, 0, 0)
        content += bytes(40 * (NAMES_PER_NODE - len(part)))
    return nodes


def _tree_nodes(
    content: bytearray, pointers: list[int], children: Sequence[tuple[int, int]], level: int
) -> list[tuple[int, int]]:
    """Append the nodes of one level of a group's tree; return the address of each, and where its last name is."""
    nodes = []
    last_name = 0
    for first in range(0, max(1, len(children)), CHILDREN_PER_NODE):
        part = children[first : first + CHILDREN_PER_NODE]
        start = len(content)
        content += b"TREE" + struct.pack("<BBHQQ", 0, level, len(part), UNDEFINED, UNDEFINED)
        content += struct.pack("<Q", last_name)
        for address, name in part:
            pointers.append(len(content))
            content += struct.pack("<QQ", address, name)
            last_name = name
        content += bytes(16 * (CHILDREN_PER_NODE - len(part)))
        nodes.append((start, last_name))
    _link_siblings(content, pointers, [address for address, _ in nodes])
    return nodes


def _link_siblings(content: bytearray, pointers: list[int], addresses: Sequence[int]) -> None:
    for left, right in pairwise(addresses):
        for at, address in ((left + 16, right), (right + 8, left)):
            struct.pack_into("<Q", content, at, address)
            pointers.append(at)
