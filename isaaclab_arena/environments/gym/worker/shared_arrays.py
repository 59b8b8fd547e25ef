"""What the steps of a worker's environments give, in shared memory, and the steps that it makes ahead."""

from __future__ import annotations

import mmap
import struct
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from .env_slot import SlotStep  # noqa: TID252  beside this file, whatever package imports it


# What the steps of a worker's environments give, in memory that it shares with the program that started it.

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


# Steps that a worker makes beyond the one it is asked for, where it is told the actions that follow.


class StepsAhead:
    """Which steps of each env slot are made but not shown, for the program that asks for steps.

    What was made is thrown away when an episode ends before it.

    Args:
        shared: The memory that the worker shares.
        most: Steps that are made at most beyond the one that is asked for.
    """

    def __init__(self, shared: SharedArrays, most: int) -> None:
        self._shared, self._most = shared, most
        shared.ahead_asked[:] = shared.ahead_made[:] = 0
        self._shown = np.zeros_like(shared.ahead_made)
        self._names: dict[int, typing.Mapping[str, typing.Sequence[str]]] = {}

    def left(self) -> np.ndarray:
        """Return how many steps of each env slot are made but not shown. Shape: (num_slots,), int32."""
        return self._shared.ahead_made - self._shown

    def forget(self, slots: typing.Sequence[int]) -> None:
        """Throw away what is made in some env slots."""
        self._shared.ahead_made[slots] = self._shown[slots] = 0
        for slot in slots:
            self._names.pop(slot, None)

    def plan(self, asked: np.ndarray, planned: typing.Mapping[int, np.ndarray]) -> int:
        """Tell the actions that follow the next ones, and return how many steps beyond these may be made of all.

        Args:
            asked: As in `SharedArrays.asked`. Env slots whose step is made already are to rest from now on.
            planned: Env slot to its actions. Shape of each: (n, action_dim).
        """
        is_made = (asked != REST) & (self.left() > 0)
        # All env slots are to have used theirs up at the same time, so that one message is for all.
        most = min(self._most, int(self.left()[is_made].max()) - 1) if is_made.any() else self._most
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
        """Keep what the worker says of names in the ``info`` of an env slot, by the number of the step."""
        self._names[slot] = names

    def show(self, slots: typing.Sequence[int], actions: np.ndarray) -> dict[int, typing.Sequence[str]]:
        """Show the next step of some env slots as if it had been made now.

        Args:
            slots: Env slots that have steps left.
            actions: What all env slots are given. Shape: (num_slots, action_dim).

        Returns:
            Env slot to the names in its ``info``, where there is something to be said of them.

        Raises:
            ValueError: If other actions were planned.
        """
        shared, numbers = self._shared, self._shown[slots]
        planned = shared.ahead_actions[slots, numbers]
        if not np.array_equal(planned, actions[slots]):
            raise ValueError(f"the policy planned the actions {planned.tolist()}, and gave {actions[slots].tolist()}")
        shared.results[slots] = shared.ahead_results[slots, numbers]
        for name, values in shared.ahead_arrays.items():
            shared.arrays[name][slots] = values[slots, numbers]
        self._shown[slots] += 1
        said = {slot: self._names.get(slot, {}).get(str(self._shown[slot] - 1)) for slot in slots}
        return {slot: names for slot, names in said.items() if names}


def make_ahead(
    shared: SharedArrays,
    slot: int,
    first: SlotStep,
    make: typing.Callable[[np.ndarray], SlotStep],
    names: dict[str, typing.Sequence[str]],
) -> None:
    """Make the steps that follow the one that was asked for, until the episode ends or all are made.

    Args:
        shared: The memory; it says how many, with which actions.
        slot: The env slot.
        first: The step that was asked for.
        make: Makes a step with an action. Shape: (action_dim,).
        names: Gets the names in the ``info`` of a step, by its number, where there is something to be said of them.
    """
    step = first
    for number in range(int(shared.ahead_asked[slot])):
        if step.terminated or step.truncated:
            break
        step = make(shared.ahead_actions[slot, number])
        shared.put_ahead(slot, number, step)
        if step.info_names:
            names[str(number)] = step.info_names
        shared.ahead_made[slot] = number + 1
