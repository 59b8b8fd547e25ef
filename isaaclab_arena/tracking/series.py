"""Show a curve that several processes measure in services that keep results, each point once."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from isaaclab_arena.errors import first_line
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.tracking.tracker import CheckpointMeasures, TrackedRun, Tracker
from isaaclab_arena.tracking.trackers import open_tracker

_LONGEST_WAIT_S = 120.0
_RETRY_S = 0.2
_SCHEMA_VERSION = 1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What services know of a curve.

    Attributes:
        run_id: Under which they have it.
        points: By tracker, the points that its server has.
        schema_version: Version of the format.
    """

    run_id: str
    points: Mapping[str, tuple[CheckpointMeasures, ...]] = field(default_factory=dict)
    schema_version: int = _SCHEMA_VERSION


class TrackedSeries:
    """Tells services of a curve, from a thread, so that one that does not answer keeps nobody from going on.

    Args:
        names: The trackers.
        record: The file that says what they know.
        held: Holds a lock among all processes that measure the curve; yields whether nobody else holds it.
        longest_wait_s: How long to wait for services each time [s].
        opened: Makes a tracker of a name.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        record: Path,
        held: Callable[[], AbstractContextManager[bool]],
        longest_wait_s: float = _LONGEST_WAIT_S,
        opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._record = record
        self._held = held
        self._longest_wait_s = longest_wait_s
        self._opened = opened
        self._thread: threading.Thread | None = None

    def tell(self, run: TrackedRun, points: Sequence[CheckpointMeasures]) -> None:
        """Tell every service the points that it does not have; what fails is warned of, and told the next time.

        Args:
            run: What the services call the curve; its ``run_id`` is taken from the record.
            points: Those that this process knows.
        """
        if not self._names or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._tell_all, args=(run, points), name="tracking", daemon=True)
        self._thread.start()
        self._thread.join(self._longest_wait_s)
        if self._thread.is_alive():
            _LOG.warning("services have not taken the curve after %.0f s, and the watch goes on", self._longest_wait_s)

    def _tell_all(self, run: TrackedRun, points: Sequence[CheckpointMeasures]) -> None:
        is_mine = False
        while not is_mine:
            with self._held() as is_mine:
                for name in self._names if is_mine else ():
                    self._tell(name, run, points)
            time.sleep(0.0 if is_mine else _RETRY_S)

    def _tell(self, name: str, run: TrackedRun, points: Sequence[CheckpointMeasures]) -> None:
        try:
            told = self._read()
            known = {_place(point): point for point in told.points.get(name, ())}
            # Another process may have told points that this one has not seen yet.
            together = known | {_place(point): point for point in points}
            tracker = self._opened(name, replace(run, run_id=told.run_id))
            for place in sorted(together, key=lambda place: (place[1], place[0])):
                if not (tracker.keeps_series and known.get(place) == together[place]):
                    tracker.log_checkpoint(together[place])
            where = tracker.close()
            kept = {**told.points, name: tuple(together.values())}
            write_text(self._record, json_text(replace(told, points=kept)), overwrite=True)
        except Exception as error:  # noqa: BLE001  a service's library may fail in any way, and no watch ends for it
            _LOG.warning("%s has not taken the curve, and the watch goes on: %s", name, first_line(error))
            return
        if not known:
            _LOG.info("%s: %s", name, where)

    def _read(self) -> Told:
        if self._record.is_file():
            return read_versioned(self._record, Told, _SCHEMA_VERSION)
        told = Told(run_id=uuid.uuid4().hex)
        write_text(self._record, json_text(told), overwrite=True)
        return told


def _place(point: CheckpointMeasures) -> tuple[str, int]:
    return point.series, point.step
