"""Time things that take turns within one run, so that each is compared with its neighbours in time."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name")
Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a call took."""

    wall_s: float  # Wall time [s].
    cpu_s: float  # CPU time [s], the figure to quote on a busy machine.


def timed(call: Callable[[], object], cpu_clock: Callable[[], float] = time.process_time) -> Timing:
    """Call something once and return how long it took.

    Args:
        call: What is timed.
        cpu_clock: Returns CPU seconds so far; by default those of all threads of this process.
    """
    cpu, wall = cpu_clock(), time.perf_counter()
    call()
    wall_s = time.perf_counter() - wall
    return Timing(wall_s=wall_s, cpu_s=cpu_clock() - cpu)


def waited_for_core_s() -> float:
    """Return how long this thread has waited so far for a core that others had [s]; 0 where the system does not say."""
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(waited_ns) / 1e9


def in_turn(
    calls: Mapping[Name, Callable[[], Measured]], rounds: int, *, warm_up: int = 0
) -> dict[Name, list[Measured]]:
    """Make every call once per round, in one order and then in the other, and return what each call returned.

    Args:
        calls: Name to what measures once.
        rounds: Number of rounds that count.
        warm_up: Number of rounds before them whose results are dropped.

    Returns:
        Name to ``rounds`` results; results of the same index are neighbours in time.
    """
    found: dict[Name, list[Measured]] = {name: [] for name in calls}
    for turn in range(-warm_up, rounds):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            result = calls[name]()
            if turn >= 0:
                found[name].append(result)
    return found


def values(measured: Iterable[Any], figure: str) -> list[float]:
    """Return one attribute of each of several measurements."""
    return [getattr(each, figure) for each in measured]


def median(measured: Iterable[Any], figure: str) -> float:
    """Return the median of one attribute of several measurements."""
    return statistics.median(values(measured, figure))


def ratios(ours: Sequence[Any], theirs: Sequence[Any], figure: str) -> list[float]:
    """Return one attribute of our measurements over that of their neighbours, pair by pair."""
    return [a / b for a, b in zip(values(ours, figure), values(theirs, figure), strict=True)]
