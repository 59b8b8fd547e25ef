"""Services that keep results: what they are told of a run, and curves that several processes measure."""

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.registry import check_optional_library, imported
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned

# Define what a service that keeps results is told of a run, and by which methods.

PROJECT = "isaaclab_arena"
"""The project or experiment of runs whose user names none."""

CHECKPOINTS = "checkpoints"
"""The name below which measures over training steps stand."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as a service shows it.

    Attributes:
        run_id: Names the run; the same for every attempt and export of it.
        name: What people call it.
        directory: Where files of a service lie that runs on no server.
        settings: What holds for all jobs: versions, machine, options.
        jobs: By name, each job's settings, under the keys of the job file: ``policy_config_dict.checkpoint_path``.
        series: The curves over training steps, where this is a watch of a training; see `CheckpointMeasures`.
    """

    run_id: str
    name: str
    directory: Path
    settings: Mapping[str, Any]
    jobs: Mapping[str, Mapping[str, Any]]
    series: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class JobMeasures:
    """What is known of a job after some of its episodes.

    Attributes:
        job: Its name.
        episodes: Number of finished episodes.
        values: Columns of the table of jobs: ``success_rate``, its interval ``success_low`` and ``success_high``.
    """

    job: str
    episodes: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CheckpointMeasures:
    """What came of one of several checkpoints of a training.

    Attributes:
        series: What is the same for all of them, such as the environment.
        step: The training step of the checkpoint.
        values: See `JobMeasures`.
    """

    series: str
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FailureFilm:
    """The video of an episode that did not succeed."""

    job: str
    episode_index: int
    outcome: str
    path: Path

    @property
    def caption(self) -> str:
        """What people read below it."""
        return f"{self.job}, episode {self.episode_index}: {self.outcome} ({self.path.stem})"


class Tracker(ABC):
    """A service that shows results. Its methods raise whatever the service's library raises."""

    @property
    def keeps_series(self) -> bool:
        """Whether points of a watch that an earlier process told are still there.

        Where they are not, every process tells all of them in the order of their steps, and what it writes takes the
        place of what an earlier one wrote.
        """
        return False

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
        """Show a table of the jobs that have finished, in place of an earlier one.

        Args:
            rows: Column to value for each job, None where a cell is empty.
        """

    @abstractmethod
    def close(self) -> str:
        """Finish, and return where the results are, for people."""


def filled_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that have a value in at least one row, in their order."""
    return list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))


# Make trackers by their names.

# Entries are text, so that a service's library is loaded only for who asked for it.
_CLASSES = {
    TrackerName.WANDB: "isaaclab_arena.tracking.wandb_tracker:WandbTracker",
    TrackerName.TENSORBOARD: "isaaclab_arena.tracking.tensorboard_tracker:TensorboardTracker",
    TrackerName.MLFLOW: "isaaclab_arena.tracking.mlflow_tracker:MlflowTracker",
}


def check_trackers(names: Iterable[str], *, key: str, file: str | None = None) -> None:
    """Refuse trackers whose library is not installed; none is loaded.

    Args:
        names: Those that were asked for.
        key: What they were asked for with, for the message.
        file: The job file that asks for them.

    Raises:
        ConfigError: With the extra to install for each.
    """
    problems: list[Problem] = []
    for name in names:
        try:
            check_optional_library(TrackerName(name), key=key)
        except ConfigError as error:
            problems += [replace(problem, file=file) for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Return a tracker that has begun to follow a run; raises what the service's library raises.

    Args:
        name: A `TrackerName`.
        run: The run.
    """
    return imported(_CLASSES[TrackerName(name)])(run)


# Show a curve that several processes measure in services that keep results, each point once.

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
