"""Follow a run with trackers while it goes on, from a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Self

from isaaclab_arena.errors import first_line
from isaaclab_arena.storage.run_plan import RunPlan
from isaaclab_arena.tracking.tracker import TrackedRun, Tracker
from isaaclab_arena.tracking.trackers import open_tracker
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun, tracked_run

_DIRECTORY = "logs"
_INTERVAL_S = 10.0
_LONGEST_INTERVAL_S = 60.0
_SHARE_OF_A_CORE = 0.01
"""What looking may take, as long as that makes no interval longer than a minute."""

_LONGEST_CLOSE_S = 120.0
_LOG = logging.getLogger(__name__)


class LiveTracking:
    """Tells trackers of a run until it is closed; the rank's loop never waits for it. A context manager.

    What fails is warned of, once for each tracker, and never ends the run. Files of services without a server lie in
    the run's ``logs`` directory.

    Args:
        output_directory: The run's directory.
        plan: What the run set out to do.
        names: The trackers.
        interval_s: Time between two looks [s]; up to a minute where looking takes more than a hundredth of it.
        longest_close_s: How long the end of the run may wait for services [s].
        opened: Makes a tracker of a name.
    """

    def __init__(
        self,
        output_directory: Path,
        plan: RunPlan,
        names: Iterable[str],
        *,
        interval_s: float = _INTERVAL_S,
        longest_close_s: float = _LONGEST_CLOSE_S,
        opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
    ) -> None:
        run = tracked_run(output_directory, plan, output_directory / _DIRECTORY)
        self._trackers = [OpenedTracker(name, partial(opened, name, run)) for name in names]
        self._watched = WatchedRun(output_directory, plan, self._trackers)
        self._interval_s = interval_s
        self._longest_close_s = longest_close_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tracking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join(self._longest_close_s)
        if self._thread.is_alive():
            _LOG.warning("tracking has not ended after %.0f s and is left behind", self._longest_close_s)

    def _watch(self) -> None:
        try:
            for tracker in self._trackers:
                tracker.open()
            pause_s = 0.0
            while not self._closing.wait(pause_s):
                began_s = time.thread_time()
                self._watched.look()
                wanted_s = (time.thread_time() - began_s) / _SHARE_OF_A_CORE
                pause_s = max(self._interval_s, min(wanted_s, _LONGEST_INTERVAL_S))
            self._watched.finish()
        except Exception as error:  # noqa: BLE001  the results are on disk, whatever becomes of what is told of them
            _LOG.warning("tracking has stopped, and the run goes on: %s", first_line(error))
        for tracker in self._trackers:
            if tracker.place is not None:
                _LOG.info("%s: %s", tracker.name, tracker.place)
