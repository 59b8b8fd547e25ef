"""The key ``latency`` of a job: how late the answers to a policy's queries are, and what the robot does meanwhile."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from isaaclab_arena.config.messages import shown
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean

MAX_STEPS = 10_000
MAX_MS = 600_000.0
MEASURED = "measured"
"""The value of ``latency`` that has this machine's own latency measured when the run starts."""

_SOURCES = ("steps", "ms", "file", MEASURED)


class Meanwhile(StrEnum):
    """What happens between a query and its answer.

    ``WAIT``: the world stands still. ``HOLD``: the robot holds still. ``CHUNK``: it goes on with the chunk that it has,
    and what is late of the next one is dropped. ``RTC``: so too, and the next chunk goes on from the actions that are
    played meanwhile (real-time chunking).
    """

    WAIT = "wait"
    HOLD = "hold"
    CHUNK = "chunk"
    RTC = "rtc"


@dataclass(frozen=True, kw_only=True)
class LatencyConfig:
    """How late the answers to a policy's queries are: exactly one of the four sources is given.

    Attributes:
        meanwhile: What happens until they are there.
        steps: The least and the most control steps, each number of them as likely.
        ms: The least and the most time, uniform [ms].
        file: File of measured latencies, one of which is drawn for each query.
        measured: Whether they are measured when the run starts.
    """

    meanwhile: Meanwhile = Meanwhile.HOLD
    steps: tuple[int, int] | None = None
    ms: tuple[float, float] | None = None
    file: str | None = None
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class Delays:
    """How many control steps answers are late, as a job has it once its control steps have a length.

    Attributes:
        steps: Numbers of control steps, ascending, each with its weight: how often it was measured, or 1.
        control_dt: Time between two control steps [s]; None where steps were given.
    """

    steps: tuple[tuple[int, int], ...]
    control_dt: float | None = None

    @property
    def longest(self) -> int:
        """The largest number of control steps."""
        return self.steps[-1][0]

    def draw(self, generator: np.random.Generator) -> int:
        """Return how many control steps one answer is late.

        Args:
            generator: The episode's own stream.
        """
        place = int(generator.integers(sum(weight for _, weight in self.steps)))
        for number, weight in self.steps:
            place -= weight
            if place < 0:
                return number
        return self.longest

    def __str__(self) -> str:
        numbers = [number for number, _ in self.steps]
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        dt = "" if self.control_dt is None else f" of {1000 * self.control_dt:g} ms"
        return f"{span} control step{'' if numbers[-1] == 1 else 's'}{dt}"


def read_latency(value: Any, *, label: str) -> tuple[LatencyConfig | None, list[Problem]]:
    """Return what a job says of latency, None where it says nothing, and what is wrong with it.

    Args:
        value: What stands under ``latency``.
        label: How messages call the job.
    """
    if value is None:
        return None, []
    try:
        return _read({MEASURED: True} if value == MEASURED else value), []
    except ConfigError as error:
        return None, [Problem(each.message, job=label, key=_key(each.key)) for each in error.problems]


def _key(key: str | None) -> str:
    return "latency" if key is None else f"latency.{key}"


def _read(value: Any) -> LatencyConfig:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(value)} is no mapping such as {{steps: 2}}, and not '{MEASURED}'")
    known = (*_SOURCES, "meanwhile")
    for key in value:
        if key not in known:
            raise ConfigError(Problem(f"unknown key{did_you_mean(str(key), known)}", key=str(key)))
    given = [key for key in _SOURCES if value.get(key) is not None]
    if len(given) != 1:
        raise ConfigError(f"needs exactly one of {', '.join(_SOURCES)}; it has {' and '.join(given) or 'none of them'}")
    meanwhile = value.get("meanwhile", Meanwhile.HOLD)
    if meanwhile not in list(Meanwhile):
        message = f"{shown(meanwhile)} is none of {', '.join(Meanwhile)}{did_you_mean(str(meanwhile), Meanwhile)}"
        raise ConfigError(Problem(message, key="meanwhile"))
    (source,) = given
    readers = {"steps": _steps, "ms": _milliseconds, "file": _file, MEASURED: _is_measured}
    return LatencyConfig(meanwhile=Meanwhile(meanwhile), **{source: readers[source](value[source])})


def _steps(value: Any) -> tuple[int, int]:
    if not all(type(each) is int for each in _ends(value)):
        raise ConfigError(Problem(f"{shown(value)} is no whole number, and no two such as [1, 4]", key="steps"))
    low, high = _ends(value)
    return _in_order(low, high, most=MAX_STEPS, key="steps")


def _milliseconds(value: Any) -> tuple[float, float]:
    if not all(type(each) in (int, float) and math.isfinite(each) for each in _ends(value)):
        raise ConfigError(Problem(f"{shown(value)} is no number, and no two such as [40, 120]", key="ms"))
    low, high = _ends(value)
    return _in_order(float(low), float(high), most=MAX_MS, key="ms")


def _ends(value: Any) -> tuple[Any, Any]:
    if isinstance(value, list | tuple):
        return (value[0], value[1]) if len(value) == 2 else (None, None)
    return value, value


def _in_order(low: Any, high: Any, *, most: float, key: str) -> tuple[Any, Any]:
    if low < 0:
        raise ConfigError(Problem(f"must not be negative, got {low:g}: no answer comes before its query", key=key))
    if high > most:
        raise ConfigError(Problem(f"must be at most {most:g}, got {high:g}", key=key))
    if low > high:
        raise ConfigError(Problem(f"goes from {low:g} to {high:g}; give the smaller one first", key=key))
    return low, high


def _file(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(Problem(f"{shown(value)} is no file name", key="file"))
    return value


def _is_measured(value: Any) -> bool:
    if value is not True:
        raise ConfigError(Problem(f"{shown(value)} is not true; leave it out, or give steps, ms or file", key=MEASURED))
    return True
