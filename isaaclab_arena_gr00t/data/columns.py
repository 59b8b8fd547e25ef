"""Convert between recorded arrays and a dataset's column, which regroups several arrays side by side for a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Column:
    """The mapping between recorded arrays and a column.

    Attributes:
        sources: Size of each array, by its path below an episode's group; the arrays side by side are the source.
        groups: Indices of each group in the source, by its key. The groups side by side are the column.
        names: Name of each number of the column.
    """

    sources: Mapping[str, int]
    groups: Mapping[str, tuple[int, ...]]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many numbers the column holds per control step."""
        return sum(map(len, self.groups.values()))

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return where each group begins and ends in the column."""
        spans, start = {}, 0
        for key, places in self.groups.items():
            spans[key] = (start, start + len(places))
            start += len(places)
        return spans

    def packed(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the column.

        Args:
            arrays: The sources by path. Shape of each: (num_steps, size).

        Returns:
            Shape: (num_steps, size), float32.
        """
        source = np.concatenate([arrays[path] for path in self.sources], axis=1)
        places = [place for group in self.groups.values() for place in group]
        return source[:, places].astype(np.float32)

    def unpacked(self, column: np.ndarray) -> dict[str, np.ndarray]:
        """Return the sources that the column holds completely.

        Args:
            column: Shape: (num_steps, size).

        Returns:
            Path to array. Shape of each: (num_steps, size of the source).
        """
        position = {
            place: number for number, place in enumerate(place for group in self.groups.values() for place in group)
        }
        arrays, start = {}, 0
        for path, size in self.sources.items():
            places = range(start, start + size)
            start += size
            if all(place in position for place in places):
                arrays[path] = np.ascontiguousarray(column[:, [position[place] for place in places]])
        return arrays

    def incomplete_groups(self) -> tuple[str, ...]:
        """Return the groups with incomplete sources, which `unpacked` cannot restore."""
        covered = {place for group in self.groups.values() for place in group}
        starts = np.cumsum([0, *self.sources.values()])
        lost = {
            place
            for start, end in pairwise(starts)
            if not covered.issuperset(range(start, end))
            for place in range(start, end)
        }
        return tuple(key for key, places in self.groups.items() if lost.intersection(places))


def whole_arrays(arrays: Mapping[str, tuple[str, int]]) -> Column:
    """Return a column in which every group is one recorded array.

    Args:
        arrays: Key of the group to path and size of the array.
    """
    groups, start = {}, 0
    for key, (_, size) in arrays.items():
        groups[key] = tuple(range(start, start + size))
        start += size
    names = tuple(f"{key}_{number}" for key, (_, size) in arrays.items() for number in range(size))
    return Column(sources=dict(arrays.values()), groups=groups, names=names)
