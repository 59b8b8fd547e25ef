"""Whole files as bytes: the file of one episode, and a dataset that takes over the episodes of many such files.

The file of an episode begins with an index that HDF5 does not see: where the episode is, where its addresses are, and a
CRC-32 of everything behind it. So a dataset is made by reading each file once, and a file in which a bit has changed,
by a disk or by a program, is not taken over.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from isaaclab_arena.storage.hdf5.episode_template import EpisodeTemplate
from isaaclab_arena.storage.hdf5.format import (
    SUPERBLOCK_BYTES,
    Block,
    attribute_message,
    group,
    padded,
    superblock,
    text_heap,
    text_reference,
)
from isaaclab_arena.storage.layout import DATA_GROUP, demo_name

_SIGNATURE = b"ARENAEP1"
_INDEX = struct.Struct("<8sIIQQQQQQQ")
_INDEX_ADDRESS = SUPERBLOCK_BYTES
_CHECKED_FROM = _INDEX_ADDRESS + 12
_POINTERS_ADDRESS = _INDEX_ADDRESS + _INDEX.size

# Stand in the opening of episode files until an episode's own name and number of control steps are known.
_NAME = demo_name(0) + "#" * (31 - len(demo_name(0)))
_TOTAL = b"#TOTAL##"


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
class _Opening:
    """What stands before the episode in its file, but for what differs from episode to episode.

    Attributes:
        content: The bytes; their number is the address of the episode.
        root_address: Where in them the root group is.
        name_at: Where the name of the episode's group belongs.
        total_at: Where its number of control steps belongs.
        env_args_at: Where the text is that describes the environment.
        env_args_bytes: How long that text is.
    """

    content: bytes
    root_address: int
    name_at: int
    total_at: int
    env_args_at: int
    env_args_bytes: int


def episode_file(
    template: EpisodeTemplate,
    arrays: Sequence[np.ndarray],
    values: Sequence[bytes],
    *,
    env_args: str,
    episode_index: int,
    num_samples: int,
) -> bytearray:
    """Return the file of one episode.

    Args:
        template: The structure of the episode.
        arrays: See `EpisodeTemplate.filled`.
        values: See `EpisodeTemplate.filled`.
        env_args: Text that describes the environment.
        episode_index: Position of the episode in the job.
        num_samples: Its control steps.
    """
    opening = _opening(template.max_pointers, template.group_offset, env_args)
    address = len(opening.content)
    parts, pointers = template.filled(arrays, values, address)
    content = bytearray().join((opening.content, *parts))
    content[:SUPERBLOCK_BYTES] = superblock(root_address=opening.root_address, end_address=len(content))
    name = demo_name(episode_index).encode()
    content[opening.name_at : opening.name_at + len(_NAME)] = name.ljust(len(_NAME), b"\0")
    struct.pack_into("<q", content, opening.total_at, num_samples)
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
    # How long these groups are does not depend on the address of the episode, which comes after them.
    text = env_args.encode()
    above, _ = _groups_above({_NAME: 0}, text, _TOTAL, len(before))
    address = len(before) + len(above)
    above, root_address = _groups_above({_NAME: address + group_offset}, text, _TOTAL, len(before))
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
    """Return the episode of a file that `episode_file` made, None if it is another file or not as it was made."""
    if len(content) < _POINTERS_ADDRESS:
        return None
    signature, crc, num_pointers, num_bytes, *numbers = _INDEX.unpack_from(content, _INDEX_ADDRESS)
    if (signature, num_bytes) != (_SIGNATURE, len(content)):
        return None
    if crc != zlib.crc32(memoryview(content)[_CHECKED_FROM:]):
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
        pieces = block.pieces_at(self._position)
        self._position += sum(map(self._file.write, pieces))

    def finish(self, env_args: str, total: int) -> None:
        """Write what leads to the episodes.

        Args:
            env_args: Text that describes their environment.
            total: Their number of control steps.
        """
        total_value = struct.pack("<q", total)
        above, root_address = _groups_above(self._members, env_args.encode(), total_value, self._position)
        self._file.write(above)
        self._file.seek(0)
        self._file.write(superblock(root_address=root_address, end_address=self._position + len(above)))


def _groups_above(members: Mapping[str, int], env_args: bytes, total: bytes, position: int) -> tuple[bytes, int]:
    """Return the group of all episodes and the root group, to stand at a position, and the root group's address."""
    messages = [attribute_message("total", np.dtype(np.int64)), attribute_message("env_args", None)]
    relative = [(name, address - position) for name, address in members.items()]
    block, offsets = group(relative, [message for message, _ in messages])
    content = block.at(position)
    values = (total, text_reference(len(env_args), position + len(content), 1))
    for value, at, (_, inside) in zip(values, offsets, messages, strict=True):
        content[at + inside : at + inside + len(value)] = value
    content += text_heap([env_args])
    root, _ = group([(DATA_GROUP, -len(content))])
    root_address = position + len(content)
    return bytes(content + root.at(root_address)), root_address
