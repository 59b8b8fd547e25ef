"""The simulators in this process: MuJoCo's threads and callbacks, and the time spent on Warp's kernels."""

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self


def default_num_threads(local_world_size: int = 1) -> int:
    """Return this rank's share of the usable cores, at least 1; ``local_world_size`` ranks share the machine."""
    # A container or `taskset` may limit the cores of this process.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // max(1, local_world_size))


# Save and restore MuJoCo's callbacks, which are global to the process. No batch steps while one of them is a Python
# function.

_NAMES = ("passive", "control", "contactfilter", "sensor", "time", "act_dyn", "act_gain", "act_bias")


def callbacks() -> tuple[Callable[..., Any] | None, ...]:
    """Return the installed callbacks, in the order of `_NAMES`; MuJoCo is not imported for it."""
    mujoco = sys.modules.get("mujoco")
    # A module that another thread is still importing has none of its functions yet.
    return tuple(getattr(mujoco, f"get_mjcb_{name}", lambda: None)() for name in _NAMES)


def set_callbacks(installed: Sequence[Callable[..., Any] | None]) -> None:
    """Install the callbacks that `callbacks` returned."""
    mujoco = sys.modules.get("mujoco")
    for name, callback in zip(_NAMES, installed, strict=True):
        getattr(mujoco, f"set_mjcb_{name}", lambda _: None)(callback)


# Measure the time that this process has spent on Warp's kernels, without importing Warp.

_MODULE_LOADED = re.compile(
    r"\s*Module .+ load on device '.+' took (?P<ms>\d+(\.\d+)?) ms +\((?P<how>compiled|cached)\)"
)


@dataclass(frozen=True, kw_only=True)
class KernelTimes:
    """Time spent on kernels [s]."""

    compile_s: float = 0.0  # modules compiled here, loading included
    load_s: float = 0.0  # modules found in the cache
    wait_s: float = 0.0  # waiting for other processes of this machine to compile or load

    @property
    def total_s(self) -> float:
        """Sum of all times [s]."""
        return self.compile_s + self.load_s + self.wait_s

    def __add__(self, other: Self) -> "KernelTimes":
        return KernelTimes(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def since(self, earlier: Self) -> "KernelTimes":
        """Return the times since ``earlier``."""
        return KernelTimes(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


class KernelLedger:
    """Sums the times that threads report."""

    _lock = threading.Lock()
    times = KernelTimes()  # the sum

    def add(self, times: KernelTimes) -> None:
        """Add times to the sum."""
        with self._lock:
            self.times += times


KERNELS = KernelLedger()  # the times of this process so far


def module_times(message: str) -> KernelTimes:
    """Return the time of a module in a line of Warp's log; zero times for any other line."""
    found = _MODULE_LOADED.match(message)
    if found is None:
        return KernelTimes()
    seconds = float(found["ms"]) / 1e3
    return KernelTimes(compile_s=seconds) if found["how"] == "compiled" else KernelTimes(load_s=seconds)
