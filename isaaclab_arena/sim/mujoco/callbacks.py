"""MuJoCo's callbacks, which belong to the whole process: no batch steps while one of them is a function of Python."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

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
