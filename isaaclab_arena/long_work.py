"""Report the progress of long work, on a display or in log lines, and how long it may take."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

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
