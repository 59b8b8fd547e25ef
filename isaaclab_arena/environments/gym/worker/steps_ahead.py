"""Steps that a worker makes beyond the one it is asked for, where it is told the actions that follow."""

from __future__ import annotations

import typing

import numpy as np

from .shared_arrays import REST  # noqa: TID252  beside this file, whatever imports it

if typing.TYPE_CHECKING:
    from .env_slot import SlotStep  # noqa: TID252  beside this file, whatever package imports it
    from .shared_arrays import SharedArrays  # noqa: TID252


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
