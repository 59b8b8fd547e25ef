"""Measure rows of figures one after the other, for as long as there is time, and write them after each."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.gpu.rows import ROW_KEYS
from isaaclab_arena.errors import EnvironmentBuildError

OUT_OF_TIME = 3
"""Exit code of a program that had no time for all it was asked for."""

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options of every benchmark of ``make gpu-check``."""

    device: str = "cuda:0"  # Where the worlds live.
    rounds: int = 3  # Turns of each measurement.
    limit_s: float | None = None  # Time for all of it, None for as long as it takes [s].
    known: Path | None = None  # Results file; what is in it is not measured again.
    output: Path | None = None  # Where the figures go, as JSON; nowhere by default.


def unknown_keys(part: str, keys: Iterable[tuple[Any, ...]], known: Path | None) -> list[tuple[Any, ...]]:
    """Return those keys of a part's rows that a results file does not have; all of them where there is no file.

    Args:
        part: A part of `ROW_KEYS`.
        keys: Values of the fields that `ROW_KEYS` names.
        known: The results file.
    """
    if known is None or not known.is_file():
        return list(keys)
    rows = json.loads(known.read_text(encoding="utf-8")).get(part, [])
    measured = {tuple(row[name] for name in ROW_KEYS[part]) for row in rows}
    return [key for key in keys if key not in measured]


def measure_all(
    keys: Iterable[tuple[Any, ...]], measure: Callable[..., Row], options: GpuOptions
) -> tuple[Sequence[Row], int]:
    """Measure one row after the other, and write the rows after each: a program may be ended at any time.

    Nothing is begun for which the time of the one before would not suffice. A failure is printed; the others go on.

    Args:
        keys: What is measured, the quickest first.
        measure: Takes the values of a key, and returns a row, a dataclass.
        options: Where the rows go, and how long all of it may take.

    Returns:
        The rows, and the exit code: 0, 1 where something failed, `OUT_OF_TIME` where only time was missing.
    """
    rows: list[Any] = []
    began = time.perf_counter()
    took_s, code = 0.0, 0
    for key in keys:
        started = time.perf_counter()
        if options.limit_s is not None and started - began + took_s > options.limit_s:
            print(f"no time left for {key}", flush=True)
            code = code or OUT_OF_TIME
            continue
        try:
            rows.append(measure(*key))
        except (RuntimeError, MemoryError, EnvironmentBuildError) as error:
            print(f"{key} failed: {error}", flush=True)
            code = 1
        took_s = time.perf_counter() - started
        if options.output is not None:
            text = json.dumps([asdict(row) for row in rows], indent=2)
            options.output.write_text(f"{text}\n", encoding="utf-8")
    return rows, code
