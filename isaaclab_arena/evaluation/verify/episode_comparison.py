"""Find the first control step and field in which two recordings of one episode differ, to the last bit."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isaaclab_arena.storage import layout
from isaaclab_arena.storage.recorded_episode import Arrays, AttributeValue, RecordedEpisode

RESULT_ATTRIBUTES = ("outcome", "success", "termination", "episode_return", "metrics", "error")
"""Attributes of an episode that say how it ended."""

_POSES = ("/joint_position", "/root_pose")
_START = -1


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first thing in which an episode differs from its recording.

    Attributes:
        field: Path of the array, such as ``states/rigid_object/cube/root_pose``, or name of the attribute.
        step: Control step, from 0; None for what the episode starts from and for how it ended.
        at_start: Whether it is something that the episode starts from.
        recorded: What the recording holds, in words.
        found: What there is now, in words.
        max_abs: Largest absolute difference of two numbers of the field at that step; None where there are no two
            numbers to compare.
    """

    field: str
    recorded: str
    found: str
    step: int | None = None
    at_start: bool = False
    max_abs: float | None = None

    def __str__(self) -> str:
        """Return where, what and by how much."""
        where = (
            "at the start" if self.at_start else "at the end" if self.step is None else f"at control step {self.step}"
        )
        if self.max_abs is not None:
            return f"{where}: {self.field} by {self.max_abs:.3g}"
        return f"{where}: {self.field} was {self.recorded}, is now {self.found}"


def first_difference(recorded: RecordedEpisode, found: RecordedEpisode) -> Difference | None:
    """Return the first difference between a recorded episode and the same one, run again; None if there is none.

    Everything that the recording holds is compared, bit for bit: what the episode starts from, then each control step
    in the order in which it happens (observation, action, state, reward), then its length and how it ended. What only
    the new episode holds is passed over.

    Args:
        recorded: The recording.
        found: The same episode, run again.
    """
    return (
        _first_of_arrays(recorded.arrays, found.arrays)
        or _length_difference(recorded.arrays, found.arrays)
        or result_difference(recorded.attributes, found.attributes)
    )


def largest_pose_difference(recorded: RecordedEpisode, found: RecordedEpisode) -> float | None:
    """Return how far positions and angles of an episode are apart at most [m, rad], over its control steps.

    Args:
        recorded: The recording.
        found: The same episode, run again.

    Returns:
        None where the recording has no poses, or the episode is of another length or has other poses.
    """
    names = [name for name in recorded.arrays if name.startswith(f"{layout.STATES}/") and name.endswith(_POSES)]
    distances = []
    for name in names:
        before, now = recorded.arrays[name], found.arrays.get(name)
        if now is None or now.shape != before.shape:
            return None
        distances.append(_largest_difference(before, now))
    known = [distance for distance in distances if distance is not None]
    return max(known) if known and len(known) == len(names) else None


def result_difference(
    recorded: Mapping[str, AttributeValue | None], found: Mapping[str, AttributeValue | None]
) -> Difference | None:
    """Return the first attribute in which two episodes ended differently; see `RESULT_ATTRIBUTES`.

    Args:
        recorded: Attributes of the recording; absent ones count as None.
        found: Attributes of the same episode, run again.
    """
    for name in RESULT_ATTRIBUTES:
        before, now = _plain(name, recorded.get(name)), _plain(name, found.get(name))
        if not _same(before, now):
            return Difference(field=name, recorded=_shown(before), found=_shown(now))
    return None


def compared_fields(episode: RecordedEpisode) -> tuple[str, ...]:
    """Return what of a recording can be compared, in the order of an episode: ``states``, ``obs`` and so on."""
    groups = {name.partition("/")[0] for name in episode.arrays} - {layout.DONES}
    return tuple(sorted(groups, key=lambda group: (_rank(group), group)))


def _first_of_arrays(recorded: Arrays, found: Arrays) -> Difference | None:
    # The earliest step decides; within it, what happens first. So the cause is named and not what follows from it.
    earliest: tuple[tuple[int, int, str], Difference] | None = None
    for name in sorted(recorded):
        if name == layout.DONES:
            continue
        difference = _array_difference(name, recorded[name], found.get(name))
        if difference is None:
            continue
        step = _START if difference.step is None else difference.step
        order = (step, _rank(name.partition("/")[0]), name)
        if earliest is None or order < earliest[0]:
            earliest = order, difference
    return None if earliest is None else earliest[1]


def _array_difference(name: str, recorded: np.ndarray, found: np.ndarray | None) -> Difference | None:
    at_start = name.startswith(f"{layout.INITIAL_STATE}/")
    if found is None:
        return _of_kind(name, "recorded", "absent", at_start=at_start)
    if recorded.dtype != found.dtype:
        return _of_kind(name, str(recorded.dtype), str(found.dtype), at_start=at_start)
    whole = at_start or recorded.ndim == 0 or found.ndim == 0
    if (recorded.shape if whole else recorded.shape[1:]) != (found.shape if whole else found.shape[1:]):
        return _of_kind(name, f"of shape {recorded.shape}", f"of shape {found.shape}", at_start=at_start)
    if whole:
        if recorded.tobytes() == found.tobytes():
            return None
        return _difference_of_values(name, recorded, found, step=None, at_start=True)
    step = _first_unequal_step(recorded, found)
    return None if step is None else _difference_of_values(name, recorded[step], found[step], step=step)


def _of_kind(name: str, recorded: str, found: str, *, at_start: bool) -> Difference:
    """Return a difference that is there from the first step on."""
    return Difference(field=name, recorded=recorded, found=found, step=None if at_start else 0, at_start=at_start)


def _difference_of_values(
    name: str, recorded: np.ndarray, found: np.ndarray, *, step: int | None, at_start: bool = False
) -> Difference:
    return Difference(
        field=name,
        recorded=_numbers(recorded),
        found=_numbers(found),
        step=step,
        at_start=at_start,
        max_abs=_largest_difference(recorded, found),
    )


def _first_unequal_step(recorded: np.ndarray, found: np.ndarray) -> int | None:
    """Return the first control step that is not the same, to the last bit, among those that both have."""
    length = min(len(recorded), len(found))
    before, now = (_bytes_of_steps(array[:length]) for array in (recorded, found))
    unequal = (before != now).any(axis=1)
    return int(unequal.argmax()) if unequal.any() else None


def _bytes_of_steps(array: np.ndarray) -> np.ndarray:
    if array.size == 0:
        return np.empty((len(array), 0), np.uint8)
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def _largest_difference(recorded: np.ndarray, found: np.ndarray) -> float | None:
    if recorded.dtype.kind not in "fiub":
        return None
    before, now = (np.atleast_1d(values).astype(np.float64) for values in (recorded, found))
    with np.errstate(invalid="ignore"):
        distance = np.abs(before - now)
    # Where one of the two is NaN or infinite and the other is not, no number says how far apart they are.
    distance[np.isnan(before) & np.isnan(now) | (before == now)] = 0.0
    return None if np.isnan(distance).any() else float(distance.max(initial=0.0))


def _length_difference(recorded: Arrays, found: Arrays) -> Difference | None:
    before, now = len(recorded[layout.ACTIONS]), len(found[layout.ACTIONS])
    if before == now:
        return None
    return Difference(field="num_samples", recorded=str(before), found=str(now))


def _rank(group: str) -> int:
    """Return when something happens within a control step."""
    if group == layout.INITIAL_STATE:
        return 0
    known = {layout.ACTIONS: 2, layout.STATES: 3, layout.REWARDS: 4}
    return known.get(group, 1)


def _plain(name: str, value: AttributeValue | None) -> Any:
    return json.loads(value) if name == "metrics" and isinstance(value, str) else value


def _same(recorded: Any, found: Any) -> bool:
    if isinstance(recorded, float) and isinstance(found, float):
        return recorded == found or (math.isnan(recorded) and math.isnan(found))
    return recorded == found


def _shown(value: Any) -> str:
    return "not there" if value is None else str(value)


def _numbers(array: np.ndarray) -> str:
    return np.array2string(array.reshape(-1), precision=6, threshold=8, edgeitems=4)
