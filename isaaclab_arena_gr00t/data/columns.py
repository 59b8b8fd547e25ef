"""A column of a dataset, which holds several recorded arrays side by side, regrouped as a model wants them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Column:
    """How recorded arrays become a column, and a column recorded arrays.

    Attributes:
        sources: Path of each array below an episode's group to its size; their numbers, side by side, are the source.
        groups: Key of each group to its places in the source. The groups, side by side, are the column.
        names: What each number of the column is called.
    """

    sources: Mapping[str, int]
    groups: Mapping[str, tuple[int, ...]]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many numbers the column holds per control step."""
        return sum(map(len, self.groups.values()))

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return where in the column each group begins, and where it ends."""
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
        """Return the sources, as far as the column holds them whole.

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
        """Return the groups that hold parts of sources which `unpacked` cannot give back."""
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
