"""Reading episodes back without HDF5's library, where they are bytes that `EpisodeTemplate` wrote.

HDF5's library takes 3 ms for the two dozen arrays and attributes of a small episode. All episodes of a job have one
structure: it is found out once with the library, and another episode has it if every byte that belongs neither to sizes
nor to addresses nor to contents is the same. What differs is left to the library, so nothing here calls a file damaged.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.storage.hdf5.episode_template import EpisodeTemplate
from isaaclab_arena.storage.hdf5.format import Block
from isaaclab_arena.storage.recorded_episode import AttributeValue, num_samples_of


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
class EpisodeStructure:
    """What the episodes of a job have in common.

    Attributes:
        arrays: Name and type of each array, by name.
        attributes: Name of each attribute in the order of the file, and its type; None for a text.
        template: The bytes.
    """

    arrays: tuple[tuple[str, np.dtype], ...]
    attributes: tuple[tuple[str, np.dtype | None], ...]
    template: EpisodeTemplate

    def read(self, content: bytes | memoryview, group_address: int) -> "WholeEpisode | None":
        """Return an episode whose arrays are what was written, None for any other.

        Args:
            content: The whole file.
            group_address: Where in it the group of the episode is.
        """
        address = group_address - self.template.group_offset
        found = self.template.read_back(content, address) if address >= 0 else None
        if found is None:
            return None
        try:
            attributes = {
                name: value.decode() if kind is None else np.frombuffer(value, kind)[0].item()
                for (name, kind), value in zip(self.attributes, found.values, strict=True)
            }
        except UnicodeDecodeError:
            return None
        try:
            num_samples_of(attributes)
        except ValueError:
            return None
        if attributes.get("checksum") != self._checksum(found.shapes, found.contents):
            return None
        view = memoryview(content)[address : address + found.num_bytes]
        block = Block(content=view, pointers=found.pointers, origin=address)
        return WholeEpisode(attributes=attributes, block=block, group_offset=self.template.group_offset)

    def _checksum(self, shapes: Sequence[tuple[int, ...]], contents: Sequence[memoryview]) -> int:
        """Return what `recorded_episode.checksum` gives for the same arrays."""
        crc = 0
        for (name, kind), shape, content in zip(self.arrays, shapes, contents, strict=True):
            crc = zlib.crc32(content, zlib.crc32(f"{name} {kind.str} {shape}".encode(), crc))
        return crc
