"""Turn the start states of many worlds into arrays; worlds that name the same parts are written together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.model_names import ModelNames


@dataclass(frozen=True, kw_only=True)
class StartBlock:
    """What worlds that name the same things of a field want to have there.

    Attributes:
        worlds: Which ones, counted as they were given. Shape: (n,), int64.
        entries: Which entries of the field. Shape: (k,), int64.
        values: What they hold. Shape: (n, k times the numbers of an entry), float64.
    """

    worlds: np.ndarray
    entries: np.ndarray
    values: np.ndarray


def write_starts(
    starts: Sequence[StartState], names: ModelNames, fields: Mapping[str, np.ndarray], indices: np.ndarray
) -> None:
    """Write what start states name into the fields of their worlds, and nothing else.

    Args:
        starts: One state per world.
        names: Where the model keeps what they name.
        fields: ``qpos``, ``qvel``, ``ctrl`` and ``mocap_pos``. Shape of each: (num_worlds, ...).
        indices: Each world's index into the fields. Shape: (len(starts),), int64.

    Raises:
        KeyError: If the model has no such name.
        ValueError: If something is given another number of values than it has, or there are not as many indices as
            starts.
    """
    if len(starts) != len(indices):
        raise ValueError(f"{len(starts)} start states for {len(indices)} worlds")
    wanted = (
        ("qpos", [start.joint_positions for start in starts], names.joint_qpos),
        ("qvel", [start.joint_velocities for start in starts], names.joint_dof),
        ("ctrl", [start.controls for start in starts], names.actuators),
        ("mocap_pos", [start.mocap_positions for start in starts], names.mocap_bodies),
    )
    for name, named, places in wanted:
        field = fields[name]
        for block in start_blocks(named, places, entry_size=prod(field.shape[2:])):
            values = block.values.reshape(len(block.worlds), len(block.entries), *field.shape[2:])
            field[indices[block.worlds, None], block.entries] = values


def start_blocks(
    named: Sequence[Mapping[str, Sequence[float] | float]],
    places: Mapping[str, slice | int],
    *,
    entry_size: int = 1,
) -> Iterator[StartBlock]:
    """Return the values of worlds for one field, in as many blocks as there are different sets of names.

    Args:
        named: For each world, by name: as many numbers as the entries of that name hold; all of them plain numbers
            where that is one.
        places: Name to its entries of the field.
        entry_size: How many numbers an entry holds.

    Raises:
        KeyError: If a name has no place.
        ValueError: If a name is given another number of values than its entries hold.
    """
    worlds_by_names: dict[tuple[str, ...], list[int]] = {}
    for world, own in enumerate(named):
        worlds_by_names.setdefault(tuple(own), []).append(world)
    for names, worlds in worlds_by_names.items():
        if not names:
            continue
        entries = [_entry_array(places[name]) for name in names]
        values = [value for world in worlds for value in named[world].values()]
        sizes = [entry_size * len(part) for part in entries]
        yield StartBlock(
            worlds=np.array(worlds),
            entries=np.concatenate(entries),
            values=_numbers(values, names, sizes).reshape(len(worlds), sum(sizes)),
        )


def _entry_array(place: slice | int) -> np.ndarray:
    return np.array([place]) if isinstance(place, int) else np.arange(place.start, place.stop)


def _numbers(values: Sequence[Any], names: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
    """Return the values of worlds one after the other, each world's in the order of the names."""
    if np.ndim(values[0]) == 0:
        return np.fromiter(values, np.float64, len(values))
    given = np.fromiter(map(len, values), np.int64, len(values)).reshape(-1, len(names))
    if (given != sizes).any():
        wrong = int(np.flatnonzero((given != sizes).any(axis=0))[0])
        raise ValueError(f"'{names[wrong]}' is given another number of values than the {sizes[wrong]} that it has")
    return np.fromiter(chain.from_iterable(values), np.float64, given.sum())
