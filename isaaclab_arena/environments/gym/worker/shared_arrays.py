"""What the steps of a worker's environments give, in shared memory, and the steps that it makes ahead."""

from __future__ import annotations

import mmap
import struct
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from .env_slot import SlotStep  # noqa: TID252  beside this file, whatever package imports it


# Share the steps of a worker's environments with the program that started it, in memory.

NO_SLOT = -1
"""The number for no env slot."""

REST, MOVE, MOVE_AND_LOOK = range(3)
"""The tasks of an env slot in a step: rest, move, or move and observe with pictures."""

_ALIGNMENT_BYTES = 64

Description = typing.Mapping[str, typing.Any]
"""The result of `EnvSlot.description`."""

REWARD, TERMINATED, TRUNCATED, FIRST_ENTRY = range(4)
"""Columns of the results of a step. From there on, each entry of ``info`` has two: whether it is there, its value."""


class SharedArrays:
    """Arrays in a file that two processes have mapped; descriptor -1 for memory of one process."""

    def __init__(self, descriptor: int, description: Description, num_slots: int, num_ahead: int = 0) -> None:
        # ``num_ahead`` is the number of steps that can be made beyond the next one.
        self._info_keys = description["info_keys"]
        self._memory = memory = mmap.mmap(descriptor, num_bytes(description, num_slots, num_ahead))
        places = [*_places(description, num_slots, num_ahead)]
        # Observations by term, each (num_slots, *shape), uint8 for pictures, else float32.
        self.arrays: dict[str, np.ndarray] = {
            name: np.ndarray(shape, dtype, memory, offset) for name, dtype, shape, offset, _ in places
        }
        [self._first_result] = (offset for name, *_, offset, _ in places if name == _RESULTS)
        self._result = struct.Struct(f"={num_results(description)}d")
        # Env slot that is being reset or stepped, else `NO_SLOT`: the culprit if the worker dies. (1,), int32.
        self.moving: np.ndarray = self.arrays.pop(_MOVING)
        self.asked: np.ndarray = self.arrays.pop(_ASKED)  # (num_slots,), uint8
        self.actions: np.ndarray = self.arrays.pop(_ACTIONS)  # (num_slots, action_dim), float32
        self.results: np.ndarray = self.arrays.pop(_RESULTS)  # (num_slots, num_results), float64
        self.ahead_asked: np.ndarray = self.arrays.pop(_AHEAD_ASKED)  # requested steps beyond the next, (num_slots,)
        self.ahead_made: np.ndarray = self.arrays.pop(_AHEAD_MADE)  # steps of those made so far, (num_slots,)
        self.ahead_actions: np.ndarray = self.arrays.pop(_AHEAD_ACTIONS)  # (num_slots, num_ahead, action_dim)
        self.ahead_results: np.ndarray = self.arrays.pop(_AHEAD_RESULTS)  # (num_slots, num_ahead, num_results)
        numbers = [name for name, term in description["observation"].items() if not term["image"]]
        # Observations after each step ahead, without pictures, each (num_slots, num_ahead, *shape), float32.
        self.ahead_arrays: dict[str, np.ndarray] = {name: self.arrays.pop(_AHEAD + name) for name in numbers}

    def put(self, slot: int, observation: typing.Mapping[str, np.ndarray]) -> None:
        """Write an env slot's observation; missing terms keep their values."""
        for name, value in observation.items():
            self.arrays[name][slot] = value

    def put_step(self, slot: int, step: SlotStep) -> None:
        """Write an env slot's step, without the names in its ``info``."""
        self.put(slot, step.observation)
        # struct is ten times as fast as assigning a list to an array.
        self._result.pack_into(self._memory, self._first_result + slot * self._result.size, *self._numbers(step))

    def put_ahead(self, slot: int, number: int, step: SlotStep) -> None:
        """Store a step made ahead for an env slot, without the names in its ``info``."""
        for name, values in self.ahead_arrays.items():
            values[slot, number] = step.observation[name]
        self.ahead_results[slot, number] = self._numbers(step)

    def _numbers(self, step: SlotStep) -> list[float]:
        entries = [each for key in self._info_keys for each in (key in step.info, step.info.get(key, 0.0))]
        return [step.reward, step.terminated, step.truncated, *entries]


def num_results(description: Description) -> int:
    """Return the number of numbers in a step's results."""
    return FIRST_ENTRY + 2 * len(description["info_keys"])


def num_bytes(description: Description, num_slots: int, num_ahead: int = 0) -> int:
    """Return the required size of the file."""
    return max(end for *_, end in _places(description, num_slots, num_ahead))


# No term of an observation has such a name.
_MOVING, _ASKED, _ACTIONS, _RESULTS = "<moving>", "<asked>", "<actions>", "<results>"
_AHEAD = "<ahead> "
_AHEAD_ASKED, _AHEAD_MADE = "<ahead asked>", "<ahead made>"
_AHEAD_ACTIONS, _AHEAD_RESULTS = "<ahead actions>", "<ahead results>"


def _places(
    description: Description, num_slots: int, num_ahead: int
) -> typing.Iterator[tuple[str, typing.Any, tuple[int, ...], int, int]]:
    """Yield each array's name, type, shape, begin and end."""
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


# Manage the steps that a worker makes beyond the requested one, from actions planned in advance.


class StepsAhead:
    """The steps of each env slot that are made but not shown; an episode's end discards them."""

    def __init__(self, shared: SharedArrays, most: int) -> None:
        self._shared, self._most = shared, most
        shared.ahead_asked[:] = shared.ahead_made[:] = 0
        self._shown = np.zeros_like(shared.ahead_made)
        self._names: dict[int, typing.Mapping[str, typing.Sequence[str]]] = {}

    def left(self) -> np.ndarray:
        """Return the number of made but not shown steps. Shape: (num_slots,), int32."""
        return self._shared.ahead_made - self._shown

    def forget(self, slots: typing.Sequence[int]) -> None:
        """Discard the steps made in these env slots."""
        self._shared.ahead_made[slots] = self._shown[slots] = 0
        for slot in slots:
            self._names.pop(slot, None)

    def plan(self, asked: np.ndarray, planned: typing.Mapping[int, np.ndarray]) -> int:
        """Write the planned actions (n, action_dim) per env slot; return the number of steps that may be made ahead."""
        is_made = (asked != REST) & (self.left() > 0)
        # All env slots use up their steps at the same time, so that one message serves all.
        most = min(self._most, int(self.left()[is_made].max()) - 1) if is_made.any() else self._most
        # ``asked`` changes in place: env slots with a step in stock rest.
        asked[is_made] = REST
        self._shared.ahead_asked[:] = 0
        asking = np.flatnonzero(asked != REST).tolist()
        self.forget(asking)
        for slot in asking:
            if slot in planned:
                told = planned[slot][:most]
                self._shared.ahead_asked[slot] = len(told)
                self._shared.ahead_actions[slot, : len(told)] = told
        return int(self._shared.ahead_asked.sum())

    def note(self, slot: int, names: typing.Mapping[str, typing.Sequence[str]]) -> None:
        """Store the names in an env slot's ``info``, by the number of the step."""
        self._names[slot] = names

    def show(self, slots: typing.Sequence[int], actions: np.ndarray) -> dict[int, typing.Sequence[str]]:
        """Show the next step of env slots that have one; ValueError if other actions were planned."""
        shared, numbers = self._shared, self._shown[slots]
        planned = shared.ahead_actions[slots, numbers]
        if not np.array_equal(planned, actions[slots]):
            raise ValueError(f"the policy planned the actions {planned.tolist()}, and gave {actions[slots].tolist()}")
        shared.results[slots] = shared.ahead_results[slots, numbers]
        for name, values in shared.ahead_arrays.items():
            shared.arrays[name][slots] = values[slots, numbers]
        self._shown[slots] += 1
        # The result holds only steps that lack a wanted entry of ``info``.
        said = {slot: self._names.get(slot, {}).get(str(self._shown[slot] - 1)) for slot in slots}
        return {slot: names for slot, names in said.items() if names}


def make_ahead(
    shared: SharedArrays,
    slot: int,
    first: SlotStep,
    make: typing.Callable[[np.ndarray], SlotStep],
    names: dict[str, typing.Sequence[str]],
) -> None:
    """Make the steps that follow the requested one, until the episode ends or all are made."""
    step = first
    for number in range(int(shared.ahead_asked[slot])):
        if step.terminated or step.truncated:
            break
        step = make(shared.ahead_actions[slot, number])
        # ``names`` receives the names in ``info``, by the number of the step, if a wanted entry is missing.
        shared.put_ahead(slot, number, step)
        if step.info_names:
            names[str(number)] = step.info_names
        shared.ahead_made[slot] = number + 1
