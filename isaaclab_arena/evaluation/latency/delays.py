"""How many control steps answers are late, from what a job says in steps or in milliseconds."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from isaaclab_arena.config.schema import MAX_MS, Delays, LatencyConfig
from isaaclab_arena.errors import ConfigError, Problem, first_line

COLUMN = "latency_ms"
"""The column of a file of measured latencies."""

MAX_LATENCIES = 100_000
_PARTS_OF_A_RANGE = 1000
_ROUNDING = 1e-9


def in_steps(low: int, high: int) -> Delays:
    """Return delays of ``low`` to ``high`` control steps, all as likely."""
    return Delays(steps=tuple((number, 1) for number in range(low, high + 1)))


def in_time(latencies_ms: Iterable[float], control_dt: float) -> Delays:
    """Return delays that are given as times, each rounded up to control steps.

    Args:
        latencies_ms: Latencies, each as likely as the others [ms].
        control_dt: Time between two control steps [s].
    """
    steps = (math.ceil(each / (1000.0 * control_dt) - _ROUNDING) for each in latencies_ms)
    return Delays(steps=tuple(sorted(Counter(max(0, each) for each in steps).items())), control_dt=control_dt)


def latencies_of(config: LatencyConfig, directory: Path) -> tuple[float, ...] | None:
    """Return the latencies that a job gives as times [ms]; None where it gives steps, or has them measured.

    Args:
        config: The job's key ``latency``.
        directory: What a relative path starts from.

    Raises:
        ConfigError: If the file is missing or wrong.
    """
    if config.file is not None:
        return _read(directory / config.file)
    if config.ms is None:
        return None
    low, high = config.ms
    if low == high:
        return (low,)
    # The middle of each of many equal parts stands for the part.
    shares = (np.arange(_PARTS_OF_A_RANGE) + 0.5) / _PARTS_OF_A_RANGE
    return tuple((low + (high - low) * shares).tolist())


def _read(path: Path) -> tuple[float, ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            if COLUMN not in (table.fieldnames or ()):
                raise _in_file(f"'{path}' has no column '{COLUMN}', which holds one latency a line [ms]")
            texts = [line[COLUMN] for line in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _in_file(f"'{path}' cannot be read: {first_line(error)}") from error
    return _checked(texts, path)


def _checked(texts: Sequence[str | None], path: Path) -> tuple[float, ...]:
    if not 1 <= len(texts) <= MAX_LATENCIES:
        raise _in_file(f"'{path}' has {len(texts)} latencies; 1 to {MAX_LATENCIES} can be drawn from")
    latencies = []
    for number, text in enumerate(texts, start=2):
        try:
            value = float(text or "")
        except ValueError:
            value = math.nan
        if not 0.0 <= value <= MAX_MS:
            raise _in_file(f"'{path}': line {number}: {text!r} is no latency from 0 to {MAX_MS:g} ms")
        latencies.append(value)
    return tuple(latencies)


def _in_file(message: str) -> ConfigError:
    return ConfigError(Problem(message, key="latency.file"))
