"""Services that keep results, Weights & Biases, TensorBoard and MLflow: their view of a run, and curves of a watch."""

import io
import logging
import re
import shutil
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.registry import check_optional_library, imported, optional_library
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


# Weights & Biases: curves of each job, the table of jobs, videos of failures, and the jobs' settings.

_STEP = "checkpoint_step"
_EPISODES = "episodes"
_TABLE = "jobs"
_TAKEN = frozenset({_STEP, CHECKPOINTS, _TABLE})
"""Keys that are no job's."""

_LONGEST_START_S = 30


class WandbTracker(Tracker):
    """Weights & Biases, or its files on this machine if no key is known."""

    def __init__(self, run: TrackedRun) -> None:
        # Each job's curves have their own axis, its number of finished episodes; those of swept checkpoints have
        # ``checkpoint_step``. W&B's environment variables apply, such as ``WANDB_MODE`` and ``WANDB_PROJECT``.
        self._library = optional_library("wandb", key="--wandb")
        quiet = {"silent": True, "console": "off"}
        wanted = self._library.setup(self._library.Settings(**quiet)).settings
        has_key = self._library.login(prompt=False, verify=False)
        mode = "offline" if wanted.mode == "online" and not has_key else wanted.mode
        self.keeps_series = mode == "online"
        run.directory.mkdir(parents=True, exist_ok=True)
        # Files of an earlier watch process are removed at the end, because this one sends the whole series again.
        earlier = run.directory.glob(f"wandb/offline-run-*-{run.run_id}")
        self._replaced = [*earlier] if run.series and not self.keeps_series else []
        self._run: Any = self._library.init(
            project=wanted.project or PROJECT,
            name=run.name,
            id=run.run_id,
            resume="allow" if self.keeps_series else None,
            dir=str(run.directory),
            mode=mode,
            config={**run.settings, "jobs": {name: dict(settings) for name, settings in run.jobs.items()}},
            reinit="create_new",
            settings=self._library.Settings(**quiet, init_timeout=_LONGEST_START_S),
        )
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric(f"{CHECKPOINTS}/*", step_metric=_STEP)
        self._keys = job_keys(run.jobs)
        self._jobs: set[str] = set()

    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to the curves ``<job>/success_rate`` and so on."""
        key = self._keys[measures.job]
        axis = f"{key}/{_EPISODES}"
        if measures.job not in self._jobs:
            self._jobs.add(measures.job)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{key}/*", step_metric=axis)
        values = {f"{key}/{name}": value for name, value in measures.values.items()}
        self._run.log({**values, axis: measures.episodes})

    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the curves ``checkpoints/<series>/success_rate`` and so on."""
        prefix = f"{CHECKPOINTS}/{measures.series}"
        values = {f"{prefix}/{name}": value for name, value in measures.values.items()}
        self._run.log({**values, _STEP: measures.step})

    def log_film(self, film: FailureFilm) -> None:
        """Add a video to ``<job>/films``."""
        caption = f"{film.job}, episode {film.episode_index}: {film.outcome} ({film.path.stem})"
        video = self._library.Video(str(film.path), caption=caption, format="mp4")
        self._run.log({f"{self._keys[film.job]}/films": video})

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show the jobs as the table ``jobs``."""
        columns, data = _filled(rows)
        self._run.log({_TABLE: self._library.Table(columns=columns, data=data, allow_mixed_types=True)})

    def close(self) -> str:
        """Finish, and return the page of the run, or the command that sends its files."""
        self._run.finish()
        written = Path(self._run.settings.sync_dir)
        for directory in self._replaced:
            if directory.name != written.name:
                shutil.rmtree(directory, ignore_errors=True)
        return str(self._run.url) if self._run.url else f"wandb sync {written}"


def job_keys(jobs: Iterable[str]) -> dict[str, str]:
    """Return the key of each job: its name, with ``_`` appended if the name is taken."""
    names = [*jobs]
    keys: dict[str, str] = {}
    for name in names:
        key = name
        while key in _TAKEN or (key != name and key in {*names, *keys.values()}):
            key += "_"
        keys[name] = key
    return keys


def _filled(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns of rows and their lines, without the columns that are empty in all of them."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) is not None for row in rows)]
    return columns, [[row.get(name) for name in columns] for row in rows]


# TensorBoard: curves of each job with their intervals, the table of jobs, and films of failures as moving pictures.

_INTERVAL = ("success_rate", "success_low", "success_high")
_EARLIER_FILES = 3
_FRAMES_OF_A_FILM = 60
_LONGER_SIDE_PIXELS = 240


class TensorboardTracker(Tracker):
    """Event files. TensorBoard shows GIFs but no videos, so films become GIFs of at most 60 frames."""

    def __init__(self, run: TrackedRun) -> None:
        self._directory = run.directory / "tensorboard"
        # Each file of a series has all of its points: a reader drops those of earlier files from the purge step on. A
        # file that is removed while a reader reads it would keep the reader from continuing to the next.
        earlier = sorted(self._directory.glob("events.out.tfevents.*")) if run.series else []
        for file in earlier[:-_EARLIER_FILES]:
            file.unlink(missing_ok=True)
        writer = imported("torch.utils.tensorboard.writer:SummaryWriter")
        self._writer: Any = writer(str(self._directory), purge_step=0 if run.series else None)
        self._num_tables = 0
        tags = [*run.jobs, *(f"{CHECKPOINTS}/{series}" for series in run.series)]
        rates = {tag: ["Margin", [f"{tag}/{name}" for name in _INTERVAL]] for tag in tags}
        self._writer.add_custom_scalars({"success rates with 95 % intervals": rates})
        for job, settings in run.jobs.items():
            self._writer.add_text(f"{job}/settings", _markdown([settings]))
        self._writer.add_text("settings", _markdown([run.settings]))

    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to the curves ``<job>/success_rate`` and so on, over finished episodes."""
        for name, value in measures.values.items():
            self._writer.add_scalar(f"{measures.job}/{name}", value, global_step=measures.episodes)

    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the curves ``checkpoints/<series>/success_rate`` and so on, over training steps."""
        for name, value in measures.values.items():
            self._writer.add_scalar(f"{CHECKPOINTS}/{measures.series}/{name}", value, global_step=measures.step)

    def log_film(self, film: FailureFilm) -> None:
        """Add a GIF to ``<job>/films``."""
        moving, size = moving_picture(film.path)
        summary = imported("tensorboard.compat.proto.summary_pb2:Summary")
        picture = summary.Image(encoded_image_string=moving, width=size[0], height=size[1], colorspace=3)
        tag = f"{film.job}/films/episode {film.episode_index} {film.outcome}/{film.path.stem}"
        self._writer.file_writer.add_summary(summary(value=[summary.Value(tag=tag, image=picture)]), film.episode_index)

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show the jobs as the text ``jobs``."""
        self._num_tables += 1
        self._writer.add_text("jobs", _markdown(rows), self._num_tables)
        self._writer.flush()

    def close(self) -> str:
        """Finish, and return the command that shows the files."""
        self._writer.close()
        return f"tensorboard --logdir {self._directory}"


def moving_picture(path: Path) -> tuple[bytes, tuple[int, int]]:
    """Return a video as a GIF, and its width and height."""
    with imported("av:open")(str(path)) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
        rate = float(container.streams.video[0].average_rate or 10)
    every = -(-len(frames) // _FRAMES_OF_A_FILM)
    kept = frames[::every]
    for frame in kept:
        frame.thumbnail((_LONGER_SIDE_PIXELS, _LONGER_SIDE_PIXELS))
    buffer = io.BytesIO()
    kept[0].save(buffer, "GIF", save_all=True, append_images=kept[1:], duration=1000 * every / rate, loop=0)
    return buffer.getvalue(), kept[0].size


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table in Markdown; one row alone as a column, because it has many cells."""
    import pandas as pd  # noqa: PLC0415  for a run that has a tracker

    from isaaclab_arena.results.columns import markdown_table  # noqa: PLC0415

    columns, lines = _filled(rows)
    if len(rows) == 1:
        columns, lines = ["key", "value"], [list(pair) for pair in zip(columns, lines[0], strict=True)]
    cells = [
        ["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in line]
        for line in lines
    ]
    return markdown_table(pd.DataFrame(cells, columns=columns))


# MLflow: a run of its own for each job, below one for the whole, with settings, curves and videos.

_ID_TAG = "isaaclab_arena.run_id"
_JOB_TAG = "isaaclab_arena.job"
_LONGEST_VALUE = 500
_REFUSED = re.compile(r"[^\w\-. /]")  # MLflow accepts letters, digits, and a few signs
_RUNS_OF_A_PAGE = 1_000


class MlflowTracker(Tracker):
    """The server of ``MLFLOW_TRACKING_URI``, or an SQLite file on this machine."""

    keeps_series = True  # the store keeps series, on this machine too

    def __init__(self, run: TrackedRun) -> None:
        # ``search_runs`` returns the table of jobs. A run that resumes, or is exported again, continues the same MLflow
        # runs.
        library = optional_library("mlflow", key="--mlflow")
        self._run = run
        self._on_this_machine = not library.is_tracking_uri_set()
        store, files = run.directory / "mlflow" / "mlflow.db", run.directory / "mlflow" / "artifacts"
        if self._on_this_machine:
            # These loggers report every table that they create.
            for name in ("alembic", "mlflow.store"):
                logging.getLogger(name).setLevel(logging.WARNING)
            store.parent.mkdir(parents=True, exist_ok=True)
        self._uri = f"sqlite:///{store.absolute()}" if self._on_this_machine else library.get_tracking_uri()
        self._client: Any = library.MlflowClient(tracking_uri=self._uri)
        name = library.environment_variables.MLFLOW_EXPERIMENT_NAME.get() or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        location = files.absolute().as_uri() if self._on_this_machine else None
        self._experiment = experiment.experiment_id if experiment else self._client.create_experiment(name, location)

        # The ids of this evaluation's runs by job, that of the whole run under None, from all pages.
        self._known: dict[str | None, str] = {}
        found, token = f"tags.`{_ID_TAG}` = '{run.run_id}'", ""
        while token is not None:
            page = self._client.search_runs(
                [self._experiment], filter_string=found, max_results=_RUNS_OF_A_PAGE, page_token=token or None
            )
            self._known |= {each.data.tags.get(_JOB_TAG): each.info.run_id for each in page}
            token = page.token or None
        self._whole = self._begun({_ID_TAG: run.run_id}, run.name, run.settings)
        self._jobs: dict[str, str] = {}

    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to the curves of the job's own run, over finished episodes."""
        for name, value in measures.values.items():
            self._client.log_metric(self._job(measures.job), name, value, step=measures.episodes)

    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the whole run's curves ``checkpoints/<series>/success_rate``, over training steps."""
        prefix = f"{CHECKPOINTS}/{_REFUSED.sub('_', measures.series)}"
        for name, value in measures.values.items():
            self._client.log_metric(self._whole, f"{prefix}/{name}", value, step=measures.step)

    def log_film(self, film: FailureFilm) -> None:
        """Store the video among the job's files, in ``films``."""
        self._client.log_artifact(self._job(film.job), str(film.path), "films")

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the table as the file ``jobs.json``, in the form that MLflow shows as a table."""
        columns, data = _filled(rows)
        self._client.log_dict(self._whole, {"columns": columns, "data": data}, "jobs.json")
        for row in rows:
            self._client.set_tag(self._job(str(row["name"])), "status", str(row["status"]))

    def close(self) -> str:
        """Finish, and return the place of the results."""
        for run_id in (*self._jobs.values(), self._whole):
            self._client.set_terminated(run_id)
        return f"mlflow server --backend-store-uri {self._uri}" if self._on_this_machine else self._uri

    def _job(self, name: str) -> str:
        if name not in self._jobs:
            tags = {_ID_TAG: self._run.run_id, _JOB_TAG: name, "mlflow.parentRunId": self._whole}
            self._jobs[name] = self._begun(tags, name, self._run.jobs.get(name, {}))
        return self._jobs[name]

    def _begun(self, tags: Mapping[str, str], name: str, settings: Mapping[str, Any]) -> str:
        """Return the id of the run with these tags, creating it if there is none."""
        known = self._known.get(tags.get(_JOB_TAG))
        if known is not None:
            return known
        run_id = self._client.create_run(self._experiment, tags=dict(tags), run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(run_id, _REFUSED.sub("_", key), str(value)[:_LONGEST_VALUE])
        return run_id


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
    classes: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {
        TrackerName.WANDB: WandbTracker,
        TrackerName.TENSORBOARD: TensorboardTracker,
        TrackerName.MLFLOW: MlflowTracker,
    }
    return classes[TrackerName(name)](run)


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
            _LOG.warning("services have not accepted the curve after %.0f s; the watch continues", self._longest_wait_s)

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
                _LOG.warning("%s has not accepted the curve; the watch continues: %s", name, first_line(error))
                continue
            if not known:
                _LOG.info("%s: %s", name, where)
