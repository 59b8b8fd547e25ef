"""Logging of a process, its standard streams, reports of long work, and the times of kernels in the lines of Warp."""

import logging
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from isaaclab_arena.errors import StorageError


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if it is closed, as after ``>&-``."""
    # Call this before any file is opened: otherwise a file would get the stream's number, and its output.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            # Child programs inherit it, too.
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", errors="backslashreplace"))


def plain_text(text: object, *, keep_lines: bool = False) -> str:
    """Replace characters that could control a terminal, reverse text or break encoding; optionally keep newlines."""
    words = str(text)
    if words.isascii() and words.isprintable():
        return words
    # The two that join or separate letters: scripts and emoji need them, and they do not control a terminal.
    joiners = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
    kept = joiners + "\n\t" if keep_lines else joiners
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) in steering and character not in kept
        else character
        for character in words
    )


class _PlainFormatter(logging.Formatter):
    """Formats log lines without characters that control a terminal, because users' code may write such characters."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record), keep_lines=True)


class _LogFile(logging.FileHandler):
    """A log file that reports its first write error on stderr, and never ends a run for it."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            sys.stderr.write(plain_text(f"cannot write {self.baseFilename}: {error.strerror}") + "\n")

    def close(self) -> None:
        """Close the file. Some file systems write only now, and report errors only now."""
        try:
            super().close()
        except OSError:
            self.handleError(logging.makeLogRecord({}))


def set_up_console_logging(rank: int) -> None:
    """Send this process's log lines to stderr with its rank; ranks other than 0 show warnings and errors only."""
    root = logging.getLogger("isaaclab_arena")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    # A second call replaces the earlier set-up.
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    console.setFormatter(_PlainFormatter(f"[rank {rank}] %(message)s"))
    root.addHandler(console)


@contextmanager
def log_file(path: Path, rank: int) -> Iterator[None]:
    """Also write all log lines to ``path`` during a ``with`` block; StorageError if it cannot be created."""
    # Later write errors appear once on the screen and stop nothing. An existing file is extended.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_PlainFormatter(f"%(asctime)s [rank {rank}] %(levelname)s %(message)s"))
    logger = logging.getLogger("isaaclab_arena")
    logger.addHandler(handler)
    try:
        yield
    except Exception:
        # The file also gets the traceback of an error that ends the block.
        logger.debug("this is what ended it", exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()


_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class LongWork:
    """The progress of long work: `done` of `total` items."""

    doing: str  # the activity in a word: `consolidating`
    done: int
    total: int


Listener = Callable[[LongWork | None], None]

_LEFT_S: ContextVar[Callable[[], float] | None] = ContextVar("left_s", default=None)
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def ended_in(left_s: Callable[[], float]) -> Iterator[None]:
    """Announce in this thread the time [s] until the process would be ended without progress."""
    token = _LEFT_S.set(left_s)
    try:
        yield
    finally:
        _LEFT_S.reset(token)


def within(limit_s: float, *, margin_s: float) -> float:
    """Return the time to wait [s]: at most `limit_s`, and until `margin_s` before the process would be ended."""
    told = _LEFT_S.get()
    if told is None:
        return limit_s
    left_s = max(0.0, told())
    # The margin takes at most half of the time left.
    return min(limit_s, max(left_s - margin_s, left_s / 2))


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Send the progress of this thread's long work to a listener, and None at the end of the ``with`` block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
        listener(None)


def told(
    items: Collection[Item],
    doing: str,
    what: str,
    *,
    unit: str = "episodes",
    interval_s: float = 2.0,
    now_s: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] | None = None,
) -> Iterator[Item]:
    """Yield items, and report progress to the listener of `heard_by` and in lines; none for short work."""
    # A line is ``checking job 'lift': 4,000 of 12,000 episodes``: doing, what, unit. With a listener, the log is for
    # debugging only.
    listener = _LISTENER.get()
    say = say or (_LOG.info if listener is None else _LOG.debug)
    last_s = now_s()
    for number, item in enumerate(items):
        if listener is not None:
            listener(LongWork(doing, number, len(items)))
        if now_s() - last_s >= interval_s:
            last_s = now_s()
            say(f"{doing} {what}: {number:,} of {len(items):,} {unit}")
        yield item
    if listener is not None:
        listener(LongWork(doing, len(items), len(items)))


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
