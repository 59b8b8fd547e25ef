"""What the steps of a worker's environments give, in memory that it shares with the program that started it."""

from __future__ import annotations

import mmap
import struct
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from .env_slot import SlotStep  # noqa: TID252  beside this file, whatever package imports it

NOBODY = -1
"""Stands for no env slot."""

REST, MOVE, MOVE_AND_LOOK = range(3)
"""What an env slot is to do in a step: nothing, to move, or to move and to observe with pictures."""

_ALIGNMENT_BYTES = 64

Description = typing.Mapping[str, typing.Any]
"""What `EnvSlot.description` returns."""

REWARD, TERMINATED, TRUNCATED, FIRST_ENTRY = range(4)
"""Columns of the results of a step. From there on, each entry of ``info`` has two: whether it is there, its value."""


class SharedArrays:
    """Arrays in a file that two processes have mapped.

    Attributes:
        arrays: What env slots observe, by term. Shape of each: (num_slots, *shape of the term), uint8 for pictures,
            else float32.
        asked: What each env slot is to do in the next step: `REST`, `MOVE` or `MOVE_AND_LOOK`. Shape: (num_slots,),
            uint8.
        actions: What those that move are given. Shape: (num_slots, action_dim), float32.
        results: What their last step gave; see `num_results`. Shape: (num_slots, num_results), float64.
        moving: The env slot that is being reset or stepped, or else `NOBODY`. It tells whose fault it was if the worker
            dies. Shape: (1,), int32.
        ahead_asked: How many steps beyond the next one each env slot may make. Shape: (num_slots,), int32.
        ahead_made: How many of them are made. Shape: (num_slots,), int32.
        ahead_actions: What they are given. Shape: (num_slots, num_ahead, action_dim), float32.
        ahead_results: What they gave. Shape: (num_slots, num_ahead, num_results), float64.
        ahead_arrays: What was observed after each, but for pictures, by term.
            Shape of each: (num_slots, num_ahead, *shape of the term), float32.

    Args:
        descriptor: The open file, of `num_bytes`; -1 for memory that no other process shares.
        description: What an environment looks like.
        num_slots: How many env slots there are.
        num_ahead: How many steps beyond the next one may be made.
    """

    def __init__(self, descriptor: int, description: Description, num_slots: int, num_ahead: int = 0) -> None:
        self._info_keys = description["info_keys"]
        self._memory = memory = mmap.mmap(descriptor, num_bytes(description, num_slots, num_ahead))
        places = [*_places(description, num_slots, num_ahead)]
        self.arrays: dict[str, np.ndarray] = {
            name: np.ndarray(shape, dtype, memory, offset) for name, dtype, shape, offset, _ in places
        }
        [self._first_result] = (offset for name, *_, offset, _ in places if name == _RESULTS)
        self._result = struct.Struct(f"={num_results(description)}d")
        self.moving: np.ndarray = self.arrays.pop(_MOVING)
        self.asked: np.ndarray = self.arrays.pop(_ASKED)
        self.actions: np.ndarray = self.arrays.pop(_ACTIONS)
        self.results: np.ndarray = self.arrays.pop(_RESULTS)
        self.ahead_asked: np.ndarray = self.arrays.pop(_AHEAD_ASKED)
        self.ahead_made: np.ndarray = self.arrays.pop(_AHEAD_MADE)
        self.ahead_actions: np.ndarray = self.arrays.pop(_AHEAD_ACTIONS)
        self.ahead_results: np.ndarray = self.arrays.pop(_AHEAD_RESULTS)
        numbers = [name for name, term in description["observation"].items() if not term["image"]]
        self.ahead_arrays: dict[str, np.ndarray] = {name: self.arrays.pop(_AHEAD + name) for name in numbers}

    def put(self, slot: int, observation: typing.Mapping[str, np.ndarray]) -> None:
        """Show what an env slot observed; terms that are missing stay as they are."""
        for name, value in observation.items():
            self.arrays[name][slot] = value

    def put_step(self, slot: int, step: SlotStep) -> None:
        """Show what a step of an env slot gave, but for the names in its ``info``."""
        self.put(slot, step.observation)
        # A list that is put into an array takes ten times as long.
        self._result.pack_into(self._memory, self._first_result + slot * self._result.size, *self._numbers(step))

    def put_ahead(self, slot: int, number: int, step: SlotStep) -> None:
        """Keep what a step of an env slot gave that is not asked for yet, but for the names in its ``info``."""
        for name, values in self.ahead_arrays.items():
            values[slot, number] = step.observation[name]
        self.ahead_results[slot, number] = self._numbers(step)

    def _numbers(self, step: SlotStep) -> list[float]:
        entries = [each for key in self._info_keys for each in (key in step.info, step.info.get(key, 0.0))]
        return [step.reward, step.terminated, step.truncated, *entries]


def num_results(description: Description) -> int:
    """Return how many numbers the results of a step are."""
    return FIRST_ENTRY + 2 * len(description["info_keys"])


def num_bytes(description: Description, num_slots: int, num_ahead: int = 0) -> int:
    """Return the size that the file has to have."""
    return max(end for *_, end in _places(description, num_slots, num_ahead))


# Terms of observations have no such names.
_MOVING, _ASKED, _ACTIONS, _RESULTS = "<moving>", "<asked>", "<actions>", "<results>"
_AHEAD = "<ahead> "
_AHEAD_ASKED, _AHEAD_MADE = "<ahead asked>", "<ahead made>"
_AHEAD_ACTIONS, _AHEAD_RESULTS = "<ahead actions>", "<ahead results>"


def _places(
    description: Description, num_slots: int, num_ahead: int
) -> typing.Iterator[tuple[str, typing.Any, tuple[int, ...], int, int]]:
    """Yield each array with its type and shape, and where it begins and ends."""
    arrays: list[tuple[str, typing.Any, tuple[int, ...]]] = [
        (_MOVING, np.int32, (1,)),
        (_ASKED, np.uint8, (num_slots,)),
        (_ACTIONS, np.float32, (num_slots, len(description["action_low"]))),
        (_RESULTS, np.float64, (num_slots, num_results(description))),
        (_AHEAD_ASKED, np.int32, (num_slots,)),
        (_AHEAD_MADE, np.int32, (num_slots,)),
        (_AHEAD_ACTIONS, np.float32, (num_slots, num_ahead, len(description["action_low"]))),
        (_AHEAD_RESULTS, np.float64, (num_slots, num_ahead, num_results(description))),
    ]
    for name, term in description["observation"].items():
        arrays.append((name, np.uint8 if term["image"] else np.float32, (num_slots, *term["shape"])))
        if not term["image"]:
            arrays.append((_AHEAD + name, np.float32, (num_slots, num_ahead, *term["shape"])))
    offset = 0
    for name, dtype, shape in arrays:
        size = np.dtype(dtype).itemsize
        for length in shape:
            size *= length
        yield name, dtype, shape, offset, offset + size
        offset += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
