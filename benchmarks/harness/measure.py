"""Options, timing, tables and pages of results. Importing it loads neither torch nor numpy."""

import dataclasses
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import RESULTS

AnyOptions = TypeVar("AnyOptions")
Name = TypeVar("Name")
Measured = TypeVar("Measured")

WITHOUT_INFLUENCE = {"in_command": False}
"""Metadata of options without influence on the figures: directories and files."""


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of every benchmark that writes a page."""

    # Where the page goes; by default into `benchmarks/results`.
    output: Path | None = dataclasses.field(default=None, metadata=WITHOUT_INFLUENCE)


def run(main: Callable[[AnyOptions], int | None], options_class: type[AnyOptions]) -> None:
    """Read the command line, run a program and exit with its code."""
    import tyro  # noqa: PLC0415  processes that measure imports load this file

    sys.exit(main(tyro.cli(options_class)))


def command_line(options: Any) -> str:
    """Return the command of a benchmark, with its options except defaults and those `WITHOUT_INFLUENCE`."""
    spec = sys.modules[type(options).__module__].__spec__
    assert spec is not None, "benchmarks run as modules"
    words = ["python", "-m", spec.name]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.metadata == WITHOUT_INFLUENCE or value == getattr(type(options)(), field.name):
            continue
        if isinstance(value, bool):
            words.append(f"--{field.name}" if value else f"--no-{field.name}")
        else:
            words += [f"--{field.name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


def processor() -> str:
    """Return the processor of this machine and the number of cores of this process."""
    from isaaclab_arena.storage import contents  # noqa: PLC0415  processes that measure imports load this file

    here = contents.node()
    return f"{here.cpu}, {here.cores} cores"


def versions(*packages: str) -> str:
    """Return names and versions of installed packages, separated by commas."""
    return ", ".join(f"{package} {metadata.version(package)}" for package in packages)


def memory_directory() -> Path | None:
    """Return a directory in memory, None without one; files in it leave the disk out of the figures."""
    shared_memory = Path("/dev/shm")
    return shared_memory if os.access(shared_memory, os.W_OK) else None


class Page:
    """A page of results with the versions of ``packages``. Make it before measuring: it reads the load average."""

    def __init__(self, name: str, title: str, options: PageOptions, *packages: str) -> None:
        self.path = options.output or RESULTS / f"{name}.md"
        # A benchmark that has not loaded PyTorch by now uses no GPU, and need not wait a second for it.
        torch = sys.modules.get("torch")
        gpus = [torch.cuda.get_device_name()] if torch is not None and torch.cuda.is_available() else []
        load = f"load average {os.getloadavg()[0]:.1f} at the start"
        software = [f"Python {platform.python_version()}", *([versions(*packages)] if packages else [])]
        machine = ", ".join([processor(), *gpus, load, *software, f"{datetime.now(UTC):%Y-%m-%d}"])
        self._beginning = [f"# {title}", f"    {command_line(options)}", f"{machine}."]

    def write(self, *paragraphs: object) -> None:
        """Write title, command, machine and paragraphs, separated by empty lines."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join([*self._beginning, *(str(each).strip() for each in paragraphs)])
        self.path.write_text(f"{text}\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The duration of a call."""

    wall_s: float  # Wall time [s].
    cpu_s: float  # CPU time [s], the figure to quote on a busy machine.


def timed(call: Callable[[], object], cpu_clock: Callable[[], float] = time.process_time) -> Timing:
    """Time one call. The default clock counts the CPU seconds of all threads of this process."""
    cpu, wall = cpu_clock(), time.perf_counter()
    call()
    wall_s = time.perf_counter() - wall
    return Timing(wall_s=wall_s, cpu_s=cpu_clock() - cpu)


def waited_for_core_s() -> float:
    """Return this thread's total wait for a core [s]; 0 if the system does not count it."""
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(waited_ns) / 1e9


def in_turn(
    calls: Mapping[Name, Callable[[], Measured]], rounds: int, *, warm_up: int = 0
) -> dict[Name, list[Measured]]:
    """Make every call once per round, in alternating order; results of one index are neighbours in time."""
    found: dict[Name, list[Measured]] = {name: [] for name in calls}
    for turn in range(-warm_up, rounds):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            result = calls[name]()
            if turn >= 0:
                found[name].append(result)
    return found


def values(measured: Iterable[Any], figure: str) -> list[float]:
    """Return one attribute of each measurement."""
    return [getattr(each, figure) for each in measured]


def median(measured: Iterable[Any], figure: str) -> float:
    """Return the median of one attribute of measurements."""
    return statistics.median(values(measured, figure))


def ratios(ours: Sequence[Any], theirs: Sequence[Any], figure: str) -> list[float]:
    """Return one attribute of our measurements over that of their neighbours, pair by pair."""
    return [a / b for a, b in zip(values(ours, figure), values(theirs, figure), strict=True)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median of values with the smallest and the largest: ``1.20 (1.10 to 1.35)``."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> list[str]:
    """Return the lines of a table: first columns of words, then columns of numbers, aligned to the right."""
    rule = ["---"] * words + ["--:"] * (len(heading) - words)
    return [f"| {' | '.join(cells)} |" for cells in (heading, rule, *rows)]


class Table:
    """A table that prints each row when it is added. The first ``words`` columns hold words, the others numbers."""

    def __init__(self, *heading: str, words: int = 1) -> None:
        self._lines = markdown_table(heading, (), words=words)
        print("\n".join(self._lines), flush=True)

    def add(self, *cells: object) -> None:
        """Add a row and print it."""
        self._lines.append(f"| {' | '.join(map(str, cells))} |")
        print(self._lines[-1], flush=True)

    def __str__(self) -> str:
        """Return the table in Markdown."""
        return "\n".join(self._lines)


def line_of(page: str, name: str) -> list[str]:
    """Return the other cells of the table line that begins with a name."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] == name:
            return cells[1:]
    raise LookupError(f"there is no line '{name}'")
