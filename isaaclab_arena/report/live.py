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
    """Calls what writes a page every 30 s, or more rarely where that would take more than 1 % of the time.

    A context manager. A page that cannot be written is left out; the next one is tried.

    Args:
        write: Writes the page.
        cost_clock: CPU time of the calling thread [s].
        pause: Waits so many seconds and returns whether to stop; None for waiting until closed.
    """

    def __init__(
        self,
        write: Callable[[], object],
        *,
        cost_clock: Callable[[], float] = time.thread_time,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
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
        """Write until it is time to stop; the pause after a page is at least a hundred times what the page took."""
        pause_s = INTERVAL_S
        while not self._pause(pause_s):
            began = self._cost_clock()
            try:
                self._write()
            except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
                _LOG.debug("no page of the run so far: %s", error)
            pause_s = max(INTERVAL_S, (self._cost_clock() - began) / SHARE)
