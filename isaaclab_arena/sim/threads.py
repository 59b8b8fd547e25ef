"""MuJoCo in this process: its threads and its callbacks."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def default_num_threads(local_world_size: int = 1) -> int:
    """Return this rank's share of the usable cores, at least 1; ``local_world_size`` ranks share the machine."""
    return max(1, available_cores() // max(1, local_world_size))


def available_cores() -> int:
    """Return the number of cores for this process, which a container or `taskset` may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Save and restore MuJoCo's callbacks, which are global to the process. No batch steps while one of them is a Python
# function.

_NAMES = ("passive", "control", "contactfilter", "sensor", "time", "act_dyn", "act_gain", "act_bias")


def callbacks() -> tuple[Callable[..., Any] | None, ...]:
    """Return the installed callbacks, in the order of `_NAMES`; MuJoCo is not imported for it."""
    mujoco = sys.modules.get("mujoco")
    return tuple(getattr(mujoco, f"get_mjcb_{name}", _nothing)() for name in _NAMES)


def set_callbacks(installed: Sequence[Callable[..., Any] | None]) -> None:
    """Install the callbacks that `callbacks` returned."""
    mujoco = sys.modules.get("mujoco")
    for name, callback in zip(_NAMES, installed, strict=True):
        getattr(mujoco, f"set_mjcb_{name}", _nothing)(callback)


def _nothing(*_: object) -> None:
    """Stand for the functions of MuJoCo if it is not loaded."""
