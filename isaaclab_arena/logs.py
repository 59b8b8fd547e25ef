"""Logging of a process, its standard streams, and reports of long work."""

import logging
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from isaaclab_arena.errors import StorageError

# Give a process the standard streams that the program which started it has closed.


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr where there is none, as after ``>&-``.

    Call it before anything is opened: the next file would get the stream's number, and what is printed with it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            # Programs that this one starts have it, too.
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", errors="backslashreplace"))


# Set up logging for a process: the rank in every line, a file per rank, the console for the user.

_FORMAT = "%(asctime)s [rank {rank}] %(levelname)s %(message)s"
_CONSOLE_FORMAT = "[rank {rank}] %(message)s"
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The two that join letters or keep them apart: scripts and emoji need them, and they steer nothing.
_JOINERS = frozenset("\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}")
_LAYOUT = frozenset("\n\t")


def plain_text(text: object, *, keep_lines: bool = False) -> str:
    """Return text without what could steer a terminal, turn its lines around or not be encoded.

    Args:
        text: What a name, a message or an exception says.
        keep_lines: Whether line breaks and tabs stay.
    """
    kept = _JOINERS | _LAYOUT if keep_lines else _JOINERS
    words = str(text)
    if words.isascii() and words.isprintable():
        return words
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) in _STEERING and character not in kept
        else character
        for character in words
    )


class _PlainFormatter(logging.Formatter):
    """Writes log lines that hold what users and their code said, and that steer nothing."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record), keep_lines=True)


class _LogFile(logging.FileHandler):
    """A log file; that it cannot be written is no reason to end a run, nor to say so at every line."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._tell_once(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file. Some file systems write only now, and say only now that they cannot."""
        try:
            super().close()
        except OSError as error:
            self._tell_once(error)

    def _tell_once(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            sys.stderr.write(plain_text(f"cannot write {self.baseFilename}: {error.strerror}") + "\n")


def set_up_console_logging(rank: int, *, level: int = logging.INFO) -> None:
    """Send this process's log lines to stderr, with its rank in front.

    Calling it again replaces the earlier set-up. Ranks other than 0 show warnings and errors only.

    Args:
        rank: This process's rank.
        level: Lowest level that rank 0 shows.
    """
    root = logging.getLogger("isaaclab_arena")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level if rank == 0 else max(level, logging.WARNING))
    console.setFormatter(_PlainFormatter(_CONSOLE_FORMAT.format(rank=rank)))
    root.addHandler(console)


@contextmanager
def log_file(path: Path, rank: int) -> Iterator[None]:
    """Also write this process's log lines, all of them, to ``path``, for the length of a ``with`` block.

    The file is created with its directory, or added to. It also gets the traceback of an error that ends
    the block.

    Raises:
        StorageError: If it cannot be created. Later failures are told once on the screen, and stop nothing.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_PlainFormatter(_FORMAT.format(rank=rank)))
    logger = logging.getLogger("isaaclab_arena")
    logger.addHandler(handler)
    try:
        yield
    except Exception:
        logger.debug("this is what ended it", exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()


# Report the progress of long work, on a display or in log lines, and how long it may take.

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 2.0

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class LongWork:
    """How far something has come.

    Attributes:
        doing: What is done, in a word: ``consolidating``.
        done: How many are done.
        total: How many there are.
    """

    doing: str
    done: int
    total: int


Listener = Callable[[LongWork | None], None]

_LEFT_S: ContextVar[Callable[[], float] | None] = ContextVar("left_s", default=None)

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def ended_in(left_s: Callable[[], float]) -> Iterator[None]:
    """Let whoever waits in this thread know when the process is ended, unless work has come further until then.

    Args:
        left_s: Tells how long it has from now on [s].
    """
    token = _LEFT_S.set(left_s)
    try:
        yield
    finally:
        _LEFT_S.reset(token)


def within(limit_s: float, *, margin_s: float) -> float:
    """Return how long to wait for something [s]: no longer than until shortly before the process would be ended.

    Args:
        limit_s: The longest [s].
        margin_s: How long before the end the waiting has to be over [s], at half of the time at least.
    """
    told = _LEFT_S.get()
    if told is None:
        return limit_s
    left_s = max(0.0, told())
    return min(limit_s, max(left_s - margin_s, left_s / 2))


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let somebody know how far long work of this thread has come; None at the end of the ``with`` block."""
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
    interval_s: float = _INTERVAL_S,
    now_s: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] | None = None,
) -> Iterator[Item]:
    """Yield items, and tell how many of them are done: see `heard_by`, or else lines; of what is over soon none.

    Args:
        items: What is gone through.
        doing: What is done with them, in a word: ``checking``.
        what: What they are part of, ``job 'lift'``; a line is ``checking job 'lift': 4,000 of 12,000 episodes``.
        unit: What an item is.
        interval_s: Time between two lines [s].
        now_s: Tells the time [s].
        say: Takes a line; by default the log, where they are for people only if nobody listens.
    """
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
