"""Sets of episodes as ascending half-open ranges: 0 to 39 and 41 as ``((0, 40), (41, 42))``. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from isaaclab_arena.errors import ArenaError

EpisodeRanges: TypeAlias = tuple[tuple[int, int], ...]


def as_ranges(indices: Iterable[int]) -> EpisodeRanges:
    """Return indices, in any order, as ranges: 0, 1, 2, 5 as ``((0, 3), (5, 6))``."""
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return tuple((begin, end) for begin, end in ranges)


def in_words(indices: Iterable[int], name: Callable[[int], str] = str) -> str:
    """Return indices, in any order, as text for people: ``0 to 4, 7``."""
    return ", ".join(
        name(begin) if end == begin + 1 else f"{name(begin)} to {name(end - 1)}" for begin, end in as_ranges(indices)
    )


def of_ranges(ranges: EpisodeRanges) -> frozenset[int]:
    """Return the indices within ranges."""
    return frozenset(index for begin, end in ranges for index in range(begin, end))


def contain(ranges: EpisodeRanges, index: int) -> bool:
    """True if an index lies in one of the ranges."""
    return any(begin <= index < end for begin, end in ranges)


def count_episodes(ranges: EpisodeRanges) -> int:
    """Return the number of episodes within ranges."""
    return sum(end - begin for begin, end in ranges)


def remaining_episodes(num_episodes: int, finished: EpisodeRanges) -> EpisodeRanges:
    """Return the episodes below ``num_episodes`` that are not finished."""
    remaining, begin = [], 0
    for finished_begin, finished_end in (*finished, (num_episodes, num_episodes)):
        end = min(finished_begin, num_episodes)
        if begin < end:
            remaining.append((begin, end))
        begin = max(begin, finished_end)
    return tuple(remaining)


def cut(ranges: EpisodeRanges, sizes: Sequence[int]) -> list[EpisodeRanges]:
    """Cut ranges into consecutive parts of the given sizes; ValueError if the sums differ."""
    if sum(sizes) != count_episodes(ranges):
        raise ValueError(f"parts of {sum(sizes)} episodes cannot be cut from {count_episodes(ranges)}")
    parts, left = [], list(reversed(ranges))
    for size in sizes:
        part: list[tuple[int, int]] = []
        wanted = size
        while wanted > 0:
            begin, end = left.pop()
            middle = min(begin + wanted, end)
            part.append((begin, middle))
            wanted -= middle - begin
            if middle < end:
                left.append((middle, end))
        parts.append(tuple(part))
    return parts


def split_evenly(num_episodes: int, num_parts: int) -> list[range]:
    """Split episodes into consecutive ranges, the first ones longer by one; ArenaError for too many parts."""
    if num_parts > num_episodes:
        raise ArenaError(f"cannot split {num_episodes} episodes over {num_parts} rebuilds")
    size, remainder = divmod(num_episodes, num_parts)
    ranges, begin = [], 0
    for part in range(num_parts):
        end = begin + size + (part < remainder)
        ranges.append(range(begin, end))
        begin = end
    return ranges
