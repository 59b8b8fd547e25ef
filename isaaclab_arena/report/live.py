"""Writes the page of a run again and again while it goes, from a thread that costs the run next to nothing."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from isaaclab_arena.errors import ArenaError

INTERVAL_S = 30.0
SHARE = 0.01

_LOG = logging.getLogger(__name__)


class LiveReport:
    """Context manager that writes a page every 30 s, or less often to stay below 1 % of the time."""

    def __init__(
        self,
        write: Callable[[], object],
        *,
        cost_clock: Callable[[], float] = time.thread_time,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        # A page that cannot be written is skipped, and the next one is tried. `pause` waits for some seconds and
        # returns True to stop; by default it waits for the end of the context.
        self._write = write
        self._cost_clock = cost_clock
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait
        self._thread = threading.Thread(target=self.keep_writing, name="report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()

    def keep_writing(self) -> None:
        """Write until the stop; the pause after a page is at least a hundred times its CPU time."""
        pause_s = INTERVAL_S
        while not self._pause(pause_s):
            began = self._cost_clock()
            try:
                self._write()
            except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
                _LOG.debug("no page of the run so far: %s", error)
            pause_s = max(INTERVAL_S, (self._cost_clock() - began) / SHARE)
