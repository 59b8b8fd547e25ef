"""Services that keep results: their view of a run, and curves that one process continues after another."""

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.registry import check_optional_library, imported
from isaaclab_arena.storage.atomic import json_text, read_versioned, write_text

# Define the interface of a service that shows the results of a run.

PROJECT = "isaaclab_arena"
"""The project or experiment of runs whose user names none."""

CHECKPOINTS = "checkpoints"
"""The name below which measures over training steps stand."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run in the form that a service shows."""

    # The same for every attempt and export of the run.
    run_id: str
    name: str  # the name for people
    directory: Path  # for files of a service without a server
    settings: Mapping[str, Any]  # settings of all jobs: versions, machine, options
    # Each job's settings by the job's name, under the keys of the job file: ``policy_config_dict.checkpoint_path``.
    jobs: Mapping[str, Mapping[str, Any]]
    # The curves over training steps, if this is a watch of a training; see `CheckpointMeasures`.
    series: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class JobMeasures:
    """The measures of a job after some of its episodes."""

    job: str
    episodes: int  # number of finished episodes
    # Columns of the table of jobs: ``success_rate``, its interval ``success_low`` and ``success_high``.
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CheckpointMeasures:
    """The measures of one of several checkpoints of a training."""

    series: str  # the common name of all of them, such as the environment
    step: int  # the training step of the checkpoint
    values: Mapping[str, float]  # see `JobMeasures`


@dataclass(frozen=True, kw_only=True)
class FailureFilm:
    """The video of an episode that did not succeed."""

    job: str
    episode_index: int
    outcome: str
    path: Path


class Tracker(ABC):
    """A service that shows results. Its methods raise the errors of the service's library."""

    # True if points of a watch from an earlier process are still there. Otherwise every process sends all points in the
    # order of their steps, and replaces those of an earlier process.
    keeps_series: bool = False

    @abstractmethod
    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to a job's curves, at its number of finished episodes."""

    @abstractmethod
    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the curves over training steps."""

    @abstractmethod
    def log_film(self, film: FailureFilm) -> None:
        """Add a video."""

    @abstractmethod
    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show a table of the finished jobs, instead of an earlier one; a row maps columns to values or None."""

    @abstractmethod
    def close(self) -> str:
        """Finish, and return the place of the results, for people."""


# Make trackers by their names.


def check_trackers(names: Iterable[str], *, key: str, file: str | None = None) -> None:
    """Refuse trackers whose library is missing (none is loaded); ConfigError with the extra to install for each."""
    problems: list[Problem] = []
    for name in names:
        try:
            check_optional_library(TrackerName(name), key=key)
        except ConfigError as error:
            problems += [replace(problem, file=file) for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Return a tracker of a run, by its `TrackerName`; raises the errors of the service's library."""
    # Entries are text, so that a service's library is loaded only if the user requested it.
    classes = {
        TrackerName.WANDB: "isaaclab_arena.tracking.services:WandbTracker",
        TrackerName.TENSORBOARD: "isaaclab_arena.tracking.services:TensorboardTracker",
        TrackerName.MLFLOW: "isaaclab_arena.tracking.services:MlflowTracker",
    }
    return imported(classes[TrackerName(name)])(run)


# Show a curve in services that keep results, each point once, also if another process goes on with it.

_SCHEMA_VERSION = 1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SentPoints:
    """The record of the points that services have of a curve."""

    run_id: str  # the run's id in the services
    # By tracker, the points that its server has.
    points: Mapping[str, tuple[CheckpointMeasures, ...]] = field(default_factory=dict)
    schema_version: int = _SCHEMA_VERSION


class TrackedSeries:
    """Sends a curve to services from a thread, so that a service that does not answer blocks nothing."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        record: Path,
        longest_wait_s: float = 120.0,
        opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        # ``record`` is the file with the points that services have. One process at a time measures the curve.
        self._record = record
        self._longest_wait_s = longest_wait_s  # for each `tell` [s]
        self._opened = opened
        self._thread: threading.Thread | None = None

    def tell(self, run: TrackedRun, points: Sequence[CheckpointMeasures]) -> None:
        """Send every service the points that it lacks; a failure is a warning, and the next call retries."""
        # The run's ``run_id`` is taken from the record. While an earlier call still runs, this one does nothing.
        if not self._names or (self._thread is not None and self._thread.is_alive()):
            return

        self._thread = threading.Thread(target=self._send, args=(run, points), name="tracking", daemon=True)
        self._thread.start()
        self._thread.join(self._longest_wait_s)
        if self._thread.is_alive():
            _LOG.warning("services have not taken the curve after %.0f s, and the watch goes on", self._longest_wait_s)

    def _send(self, run: TrackedRun, points: Sequence[CheckpointMeasures]) -> None:
        """Send each service the points that it lacks, and record them."""
        for name in self._names:
            try:
                if self._record.is_file():
                    told = read_versioned(self._record, SentPoints, _SCHEMA_VERSION)
                else:
                    told = SentPoints(run_id=uuid.uuid4().hex)
                    write_text(self._record, json_text(told), overwrite=True)
                known = {(point.step, point.series): point for point in told.points.get(name, ())}
                # An earlier process may have sent points of checkpoints that this one does not show.
                together = known | {(point.step, point.series): point for point in points}
                tracker = self._opened(name, replace(run, run_id=told.run_id))
                for place, point in sorted(together.items(), key=lambda item: item[0]):
                    if not (tracker.keeps_series and known.get(place) == point):
                        tracker.log_checkpoint(point)
                where = tracker.close()
                kept = {**told.points, name: tuple(together.values())}
                write_text(self._record, json_text(replace(told, points=kept)), overwrite=True)
            except Exception as error:  # noqa: BLE001  a service's library may fail in any way, and no watch ends for it
                _LOG.warning("%s has not taken the curve, and the watch goes on: %s", name, first_line(error))
                continue
            if not known:
                _LOG.info("%s: %s", name, where)
