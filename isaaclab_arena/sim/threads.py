"""MuJoCo in this process: its threads and its callbacks."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Choose the number of physics threads of a rank.


def default_num_threads(local_world_size: int = 1) -> int:
    """Return this rank's share of the cores that the process may run on, at least 1.

    Args:
        local_world_size: Number of ranks on this machine.
    """
    return max(1, available_cores() // max(1, local_world_size))


def available_cores() -> int:
    """Return the number of cores that this process may run on, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# MuJoCo's callbacks, which belong to the whole process: no batch steps while one of them is a function of Python.

_NAMES = ("passive", "control", "contactfilter", "sensor", "time", "act_dyn", "act_gain", "act_bias")


def callbacks() -> tuple[Callable[..., Any] | None, ...]:
    """Return those that are installed, in an order of their own; nothing is imported for it."""
    mujoco = sys.modules.get("mujoco")
    return tuple(getattr(mujoco, f"get_mjcb_{name}", _nothing)() for name in _NAMES)


def set_callbacks(installed: Sequence[Callable[..., Any] | None]) -> None:
    """Install what `callbacks` has returned."""
    mujoco = sys.modules.get("mujoco")
    for name, callback in zip(_NAMES, installed, strict=True):
        getattr(mujoco, f"set_mjcb_{name}", _nothing)(callback)


def _nothing(*_: object) -> None:
    """Stand for the functions of a MuJoCo that is not loaded."""
