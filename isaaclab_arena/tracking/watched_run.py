"""The progress of a run's ranks for Weights & Biases, TensorBoard and MLflow, live or afterwards."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from isaaclab_arena.config.expansion.suites import swept_step
from isaaclab_arena.config.options import holds_secret
from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.columns import JOBS, METRICS, Show, table_of
from isaaclab_arena.results.console import job_settings
from isaaclab_arena.results.merge import RunFiles, job_table, read, records
from isaaclab_arena.results.rows import metrics_of, repeats_in_words
from isaaclab_arena.storage.ledger import JobResultStatus, PlanEntry, RunPlan, read_run_plan, videos_of_job
from isaaclab_arena.tracking.trackers import (
    CheckpointMeasures,
    FailureFilm,
    JobMeasures,
    TrackedRun,
    Tracker,
    check_trackers,
    open_tracker,
)

# Read the files that the ranks of a run have written so far, and send trackers the news.

MAX_FILMS_OF_A_JOB = 8
"""Videos of failures per job that are sent; videos take most of the time and space."""

_ENDED = {JobResultStatus.COMPLETED, JobResultStatus.FAILED}
_LOG = logging.getLogger(__name__)


class OpenedTracker:
    """A tracker that opens at its first message. Its first failure is a warning, and ends it."""

    def __init__(self, name: str, opened: Callable[[], Tracker]) -> None:
        self.name = name
        self.failure: str | None = None  # the error, None while there is none
        self.place: str | None = None  # the place of the results, once closed
        self._opened = opened
        self._tracker: Tracker | None = None

    def tell(self, say: Callable[[Tracker], Any]) -> None:
        """Send it a message, unless it has failed; the answer to the last one is its `place`."""
        if self.failure is not None:
            return
        try:
            self._tracker = self._tracker or self._opened()
            self.place = say(self._tracker)
        except Exception as error:  # noqa: BLE001  a service's library may fail in any way, and no run ends for it
            self.failure, self.place = first_line(error), None
            _LOG.warning("%s gets no more results of this run, which continues: %s", self.name, self.failure)


class WatchedRun:
    """A run whose files are read again and again, and the news in them."""

    def __init__(self, output_directory: Path, plan: RunPlan, trackers: Sequence[OpenedTracker]) -> None:
        self._output_directory = output_directory
        self._plan = plan
        self._jobs = {job.name: job for job in plan.jobs}
        self._trackers = trackers
        self._files = RunFiles(output_directory, plan)
        self._told: dict[str, JobMeasures] = {}
        self._curves: dict[str, CheckpointMeasures] = {}
        self._failed: dict[str, dict[int, Outcome]] = {}
        self._filmed: dict[str, set[Path]] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def look(self, *, is_last: bool = False) -> None:
        """Read the files that have grown since the last look, and send their news to the trackers."""
        rows, failed = dict(self._rows), {Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ERROR}
        news = self._files.look()
        for evidence, row in zip(news, records(job_table(news)), strict=True):
            name = evidence.job.name
            self._failed[name] = {
                line.episode_index: line.outcome for line in evidence.lines if line.outcome and line.outcome in failed
            }
            self._tell_films(name)
            self._tell_row(evidence.job, row, records(table_of(METRICS, metrics_of(evidence))))
            if row["status"] in _ENDED:
                self._rows[name] = row
        if rows != self._rows and not is_last:
            table = [self._rows[name] for name in self._jobs if name in self._rows]
            self._tell(lambda tracker: tracker.log_table(table))

    def finish(self) -> None:
        """Look once more, send the trackers the final table, and close them."""
        self.look(is_last=True)
        for name in self._failed:
            # The last films are complete after the last commit line.
            self._tell_films(name)
        tables = read(self._output_directory)
        metric_rows = records(tables.metrics)
        for row in tables.rows:
            # If jobs stop as soon as a question is answered, only the table knows the episodes that count.
            metrics = [each for each in metric_rows if each["job"] == row["name"]]
            self._tell_row(self._jobs[str(row["name"])], row, metrics)
        self._tell(lambda tracker: tracker.log_table(tables.rows))
        self._tell(lambda tracker: tracker.close())

    def _tell(self, say: Callable[[Tracker], Any]) -> None:
        for tracker in self._trackers:
            tracker.tell(say)

    def _tell_row(self, job: PlanEntry, row: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> None:
        """Send a job's measures and metrics, and its checkpoint's once it has ended, unless they have been sent."""
        names = [each.name for each in JOBS if Show.TRACKER in each.show]
        values = {name: float(row[name]) for name in names if row.get(name) is not None}
        # The number of distinct conditions is of interest only if conditions repeat.
        if repeats_in_words(row) is None:
            values.pop("distinct_conditions", None)
        values |= {f"metrics/{each['metric']}": each["mean"] for each in metrics if each["mean"] is not None}
        measures = JobMeasures(job=job.name, episodes=int(row["episodes"]), values=values)
        if measures.episodes and self._told.get(job.name) != measures:
            self._told[job.name] = measures
            self._tell(lambda tracker: tracker.log_job(measures))

        swept = job.config.swept
        steps = ((key, swept_step(key, value)) for key, value in swept.items() if row["status"] in _ENDED)
        key, step = next((each for each in steps if each[1] is not None), ("", None))
        if step is not None:
            # Jobs that differ only in their checkpoint share a series: ``reach, seed=1``.
            others = [f"{name.rpartition('.')[2]}={value}" for name, value in swept.items() if name != key]
            series = ", ".join([job.config.environment, *others])
            point = CheckpointMeasures(series=series, step=step, values=values)
            if self._curves.get(job.name) != point:
                self._curves[job.name] = point
                self._tell(lambda tracker: tracker.log_checkpoint(point))

    def _tell_films(self, job: str) -> None:
        filmed, failed = self._filmed.setdefault(job, set()), self._failed[job]
        for said, path in videos_of_job(self._output_directory, job) if failed else ():
            if said.episode_index not in failed or path in filmed or len(filmed) >= MAX_FILMS_OF_A_JOB:
                continue
            filmed.add(path)
            outcome = str(failed[said.episode_index])
            film = FailureFilm(job=job, episode_index=said.episode_index, outcome=outcome, path=path)
            self._tell(lambda tracker, film=film: tracker.log_film(film))


def tracked_run(output_directory: Path, plan: RunPlan, directory: Path) -> TrackedRun:
    """Return a run in the form that services show, named after its output directory."""
    return TrackedRun(
        run_id=plan.run_id,
        name=output_directory.resolve().name,
        directory=directory,
        settings={
            "config_hash": plan.config_hash,
            "source_file": plan.source_file,
            "created_at": plan.created_at,
            "git_revision": plan.git_revision,
            "world_size": plan.world_size,
            "devices": ", ".join(plan.devices),
            "cpu": plan.machine.cpu,
            "versions": dict(plan.versions),
            "options": dict(plan.settings),
        },
        jobs={
            job.name: {key: value for key, value in job_settings(job).items() if not holds_secret(key)}
            for job in plan.jobs
            if job.is_to_run
        },
    )


# Follow a run with trackers while it goes on, from a thread of its own.


@contextmanager
def live_tracking(
    output_directory: Path,
    plan: RunPlan,
    names: Iterable[str],
    *,
    interval_s: float = 10.0,
    longest_close_s: float = 120.0,
    opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
) -> Iterator[None]:
    """Send a run to trackers until the end of a ``with`` block; the rank's loop never waits for it."""
    # A tracker's failure is a warning, once for each tracker, and never ends the run. Files of services without a
    # server are in the run's ``logs`` directory. Looks are ``interval_s`` [s] apart, or more if one takes a share of
    # it. At the end of the run services have ``longest_close_s`` [s].
    run = tracked_run(output_directory, plan, output_directory / "logs")
    trackers = [OpenedTracker(name, partial(opened, name, run)) for name in names]
    watched, closing = WatchedRun(output_directory, plan, trackers), threading.Event()

    def watch() -> None:
        try:
            # Open the trackers before the first look, because this may take seconds.
            for tracker in trackers:
                tracker.tell(lambda _: None)
            pause_s = 0.0
            while not closing.wait(pause_s):
                began_s = time.thread_time()
                watched.look()
                # Looking takes at most 1 % of a core, as long as that makes no interval longer than a minute.
                wanted_s = (time.thread_time() - began_s) / 0.01
                pause_s = max(interval_s, min(wanted_s, 60.0))
            watched.finish()
        except Exception as error:  # noqa: BLE001  the results are on disk; a tracker's error must not end the run
            _LOG.warning("tracking failed, and the run continues: %s", first_line(error))
        for tracker in trackers:
            if tracker.place is not None:
                _LOG.info("%s: %s", tracker.name, tracker.place)

    thread = threading.Thread(target=watch, name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(longest_close_s)
        if thread.is_alive():
            _LOG.warning("tracking is not finished after %.0f s; it is given up", longest_close_s)


# Send a finished run, or the existing part of one, to a tracker.


def export_to(name: TrackerName, run: Path, output: Path) -> list[str]:
    """Send a run's directory to a tracker, and return lines for the user; ConfigError or ArenaError if that fails."""
    check_trackers([name], key=f"--{name}")
    plan = read_run_plan(run)
    tracker = OpenedTracker(name, partial(open_tracker, name, tracked_run(run, plan, output)))
    WatchedRun(run, plan, [tracker]).finish()
    if tracker.failure is not None:
        raise ArenaError(f"{name} did not accept the run: {tracker.failure}")
    return [tracker.place or ""]


export_wandb = partial(export_to, TrackerName.WANDB)
export_tensorboard = partial(export_to, TrackerName.TENSORBOARD)
export_mlflow = partial(export_to, TrackerName.MLFLOW)
