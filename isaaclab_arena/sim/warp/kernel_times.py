"""Measure the time that this process has spent on Warp's kernels, without importing Warp."""

import re
import threading
from dataclasses import dataclass
from typing import Self

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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = KernelTimes()

    def add(self, times: KernelTimes) -> None:
        """Add times to the sum."""
        with self._lock:
            self._times += times

    def times(self) -> KernelTimes:
        """Return the sum."""
        return self._times


KERNELS = KernelLedger()  # what this process has spent so far


def module_times(message: str) -> KernelTimes:
    """Return the time of a module in a line of Warp's log; zero times for any other line."""
    found = _MODULE_LOADED.match(message)
    if found is None:
        return KernelTimes()
    seconds = float(found["ms"]) / 1e3
    return KernelTimes(compile_s=seconds) if found["how"] == "compiled" else KernelTimes(load_s=seconds)
