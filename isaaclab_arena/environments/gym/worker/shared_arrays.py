"""What the steps of a worker's environments give, in memory that it shares with the program that started it."""

from __future__ import annotations

import mmap
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from .env_slot import SlotStep  # noqa: TID252  beside this file, whatever package imports it

NOBODY = -1
"""Stands for no env slot."""

_ALIGNMENT_BYTES = 64

Description = typing.Mapping[str, typing.Any]
"""What `EnvSlot.description` returns."""

_FIRST_INFO = 3


class SharedArrays:
    """Arrays in a file that two processes have mapped.

    Attributes:
        arrays: By term. Shape of each: (num_slots, *shape of the term), uint8 for pictures, else float32.
        moving: The env slot that is being reset or stepped, or else `NOBODY`. It tells whose fault it was if the worker
            dies. Shape: (1,), int32.

    Args:
        descriptor: The open file, of `num_bytes`.
        description: What an environment looks like.
        num_slots: How many env slots the worker holds.
    """

    def __init__(self, descriptor: int, description: Description, num_slots: int) -> None:
        terms = description["observation"]
        self._info_keys = description["info_keys"]
        memory = mmap.mmap(descriptor, num_bytes(description, num_slots))
        self.moving: np.ndarray = np.ndarray((1,), np.int32, memory)
        # Reward, terminated, truncated, then of each entry of ``info`` whether it is there and its value.
        results = num_slots, _FIRST_INFO + 2 * len(self._info_keys)
        self._results: np.ndarray = np.ndarray(results, np.float64, memory, _ALIGNMENT_BYTES)
        self.arrays: dict[str, np.ndarray] = {
            name: np.ndarray((num_slots, *terms[name]["shape"]), dtype, memory, offset)
            for name, dtype, offset, _ in _places(description, num_slots)
        }

    def put(self, slot: int, observation: typing.Mapping[str, np.ndarray]) -> None:
        """Show what an env slot observed; terms that are missing stay as they are."""
        for name, value in observation.items():
            self.arrays[name][slot] = value

    def put_step(self, slot: int, step: SlotStep) -> None:
        """Show what a step of an env slot gave, but for the names in its ``info``."""
        self.put(slot, step.observation)
        entries = [each for key in self._info_keys for each in (key in step.info, step.info.get(key, 0.0))]
        self._results[slot] = [step.reward, step.terminated, step.truncated, *entries]

    def results(self, slot: int) -> tuple[float, bool, bool, dict[str, float]]:
        """Return reward, terminated, truncated and ``info`` of an env slot's last step."""
        reward, terminated, truncated, *entries = self._results[slot].tolist()
        entries_by_key = zip(self._info_keys, entries[::2], entries[1::2])  # noqa: B905  Python 3.9 has none
        info = {key: value for key, is_there, value in entries_by_key if is_there}
        return reward, bool(terminated), bool(truncated), info


def num_bytes(description: Description, num_slots: int) -> int:
    """Return the size that the file has to have."""
    ends = [end for *_, end in _places(description, num_slots)]
    return max([_first_place(description, num_slots), *ends])


def _first_place(description: Description, num_slots: int) -> int:
    num_results = num_slots * (_FIRST_INFO + 2 * len(description["info_keys"]))
    return _ALIGNMENT_BYTES + _aligned(num_results * np.dtype(np.float64).itemsize)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _places(description: Description, num_slots: int) -> typing.Iterator[tuple[str, type, int, int]]:
    """Yield each term with its type, and where its array begins and ends."""
    offset = _first_place(description, num_slots)
    for name, term in description["observation"].items():
        dtype = np.uint8 if term["image"] else np.float32
        size = num_slots * np.dtype(dtype).itemsize
        for length in term["shape"]:
            size *= length
        yield name, dtype, offset, offset + size
        offset += _aligned(size)
