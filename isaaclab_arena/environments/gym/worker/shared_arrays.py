"""What the environments of a worker observe, in memory that it shares with the program that started it."""

from __future__ import annotations

import mmap
import typing

import numpy as np

NOBODY = -1
"""Stands for no env slot."""

_ALIGNMENT_BYTES = 64

Terms = typing.Mapping[str, typing.Mapping[str, typing.Any]]
"""Observation terms as `EnvSlot.description` has them."""


class SharedArrays:
    """Arrays in a file that two processes have mapped.

    Attributes:
        arrays: By term. Shape of each: (num_slots, *shape of the term), uint8 for pictures, else float32.
        moving: The env slot that is being reset or stepped, or else `NOBODY`. It tells whose fault it was if the worker
            dies. Shape: (1,), int32.

    Args:
        descriptor: The open file, of `num_bytes`.
        terms: What is observed.
        num_slots: How many env slots the worker holds.
    """

    def __init__(self, descriptor: int, terms: Terms, num_slots: int) -> None:
        memory = mmap.mmap(descriptor, num_bytes(terms, num_slots))
        self.moving: np.ndarray = np.ndarray((1,), np.int32, memory)
        self.arrays = {
            name: np.ndarray((num_slots, *terms[name]["shape"]), dtype, memory, offset)
            for name, dtype, offset, _ in _places(terms, num_slots)
        }

    def put(self, slot: int, observation: typing.Mapping[str, np.ndarray]) -> None:
        """Show what an env slot observed; terms that are missing stay as they are."""
        for name, value in observation.items():
            self.arrays[name][slot] = value


def num_bytes(terms: Terms, num_slots: int) -> int:
    """Return the size that the file has to have."""
    return max([_ALIGNMENT_BYTES, *(end for *_, end in _places(terms, num_slots))])


def _places(terms: Terms, num_slots: int) -> typing.Iterator[tuple[str, type, int, int]]:
    """Yield each term with its type, and where its array begins and ends."""
    offset = _ALIGNMENT_BYTES
    for name, term in terms.items():
        dtype = np.uint8 if term["image"] else np.float32
        size = num_slots * np.dtype(dtype).itemsize
        for length in term["shape"]:
            size *= length
        yield name, dtype, offset, offset + size
        offset += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
