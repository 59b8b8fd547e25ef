"""Whole files as bytes: the file of one episode, and a dataset that takes over the episodes of many such files.

The file of an episode begins with an index that HDF5 does not see: where the episode is, where its addresses are, and a
CRC-32 of everything behind it. So a dataset is made by reading each file once, and a file in which a bit has changed,
by a disk or by a program, is not taken over.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from isaaclab_arena.storage.episode_template import EpisodeBlock
from isaaclab_arena.storage.hdf5_format import (
    SUPERBLOCK_BYTES,
    AttributeType,
    attribute_message,
    group,
    superblock,
    text_heap,
    text_reference,
)
from isaaclab_arena.storage.layout import DATA_GROUP, demo_name

_SIGNATURE = b"ARENAEP1"
_INDEX = struct.Struct("<8sIIQQQQQ")
_INDEX_ADDRESS = SUPERBLOCK_BYTES
_CHECKED_FROM = _INDEX_ADDRESS + 12


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An attribute and its value, as bytes; a text in UTF-8."""

    type: AttributeType
    value: bytes


def episode_file(block: EpisodeBlock, attributes: Sequence[Attribute]) -> bytes:
    """Return the file of one episode.

    Args:
        block: The episode.
        attributes: Those of the group above it.
    """
    index_bytes = _INDEX.size + 4 * len(block.pointers)
    padding = bytes(-index_bytes % 8)
    position = _INDEX_ADDRESS + index_bytes + len(padding)
    episode = block.at(position)
    above, root_address = _groups_above(
        {demo_name(block.episode_index): position + block.group_offset}, attributes, position + len(episode)
    )
    index = (position, len(episode), block.episode_index, block.group_offset, block.num_samples)
    pointers = block.pointers.astype("<u4").tobytes()
    content = bytearray().join(
        (
            superblock(root_address=root_address, end_address=position + len(episode) + len(above)),
            _INDEX.pack(_SIGNATURE, 0, len(block.pointers), *index),
            pointers,
            padding,
            episode,
            above,
        )
    )
    struct.pack_into("<I", content, _CHECKED_FROM - 4, zlib.crc32(memoryview(content)[_CHECKED_FROM:]))
    return bytes(content)


def block_of(content: bytes | bytearray) -> EpisodeBlock | None:
    """Return the episode of a file that `episode_file` made, None if it is another file or not as it was made."""
    if len(content) < _INDEX_ADDRESS + _INDEX.size:
        return None
    signature, crc, *numbers = _INDEX.unpack_from(content, _INDEX_ADDRESS)
    if signature != _SIGNATURE or crc != zlib.crc32(memoryview(content)[_CHECKED_FROM:]):
        return None
    num_pointers, position, num_bytes, episode_index, group_offset, num_samples = numbers
    pointers = np.frombuffer(content, "<u4", num_pointers, _INDEX_ADDRESS + _INDEX.size).astype(np.int64)
    return EpisodeBlock(
        content=memoryview(content)[position : position + num_bytes],
        pointers=pointers,
        episode_index=episode_index,
        group_offset=group_offset,
        num_samples=num_samples,
        origin=position,
    )


class DatasetWriter:
    """Writes a dataset, one episode after the other; it is a file of HDF5 once it is finished.

    Args:
        file: Where to write; it is empty.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: dict[str, int] = {}
        self._position = file.write(bytes(SUPERBLOCK_BYTES))

    def add(self, block: EpisodeBlock) -> None:
        """Append an episode."""
        self._members[demo_name(block.episode_index)] = self._position + block.group_offset
        self._position += self._file.write(block.at(self._position))

    def finish(self, attributes: Sequence[Attribute]) -> None:
        """Write what leads to the episodes.

        Args:
            attributes: Those of the group above them.
        """
        above, root_address = _groups_above(self._members, attributes, self._position)
        self._file.write(above)
        self._file.seek(0)
        self._file.write(superblock(root_address=root_address, end_address=self._position + len(above)))


def _groups_above(members: Mapping[str, int], attributes: Sequence[Attribute], position: int) -> tuple[bytes, int]:
    """Return the group of all episodes and the root group, to stand at a position, and the root group's address."""
    messages = [attribute_message(each.type) for each in attributes]
    relative = [(name, address - position) for name, address in members.items()]
    block, offsets = group(relative, [message for message, _ in messages])
    content = block.at(position)
    texts: list[bytes] = []
    for each, at, (_, inside) in zip(attributes, offsets, messages, strict=True):
        if each.type.value_bytes is None:
            texts.append(each.value)
            value = text_reference(len(each.value), position + len(content), len(texts))
        else:
            value = each.value
        content[at + inside : at + inside + len(value)] = value
    content += text_heap(texts)
    root, _ = group([(DATA_GROUP, -len(content))])
    root_address = position + len(content)
    return bytes(content + root.at(root_address)), root_address
