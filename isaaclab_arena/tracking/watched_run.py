"""The progress of a run's ranks for Weights & Biases, TensorBoard and MLflow, live or afterwards.

Their libraries load where a service is opened.
"""

import io
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.interfaces.content import holds_secret
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.registry import imported, optional_library
from isaaclab_arena.results.columns import JOBS, METRICS, Show, markdown_table, table_of
from isaaclab_arena.results.console import job_settings
from isaaclab_arena.results.merge import RunFiles, job_table, read, records
from isaaclab_arena.results.rows import metrics_of, repeats_in_words
from isaaclab_arena.storage.ledger import PlanEntry, RunPlan, read_run_plan, videos_of_job
from isaaclab_arena.storage.reports import JobResultStatus
from isaaclab_arena.tracking.trackers import (
    CHECKPOINTS,
    PROJECT,
    CheckpointMeasures,
    FailureFilm,
    JobMeasures,
    TrackedRun,
    Tracker,
    check_trackers,
    open_tracker,
)

# Find the training step of a swept checkpoint, which is the axis of a learning curve. Pure functions.

_CHECKPOINT_KEY = re.compile(r"checkpoint_step|policy_config_dict\.(.*\.)?[^.]*(checkpoint|model)[^.]*", re.IGNORECASE)


def checkpoint_step(swept: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the swept key that names a checkpoint, and its training step; None if no key does."""
    # The keys are ``checkpoint_step`` (from an entry's ``checkpoints``), and those of ``policy_config_dict`` with
    # ``checkpoint`` or ``model`` in their name. The step is a whole number, or the last number of the last path part
    # with one: 2000 for ``runs/a1/model_2000.pt`` and for ``checkpoints/002000/pretrained_model``.
    for key, value in swept.items():
        if _CHECKPOINT_KEY.fullmatch(key) is None:
            continue
        if type(value) is int:
            return key, value
        parts = PurePath(value).parts if isinstance(value, str) else ()
        numbers = [number for part in parts for number in re.findall(r"\d+", part)]
        if numbers:
            return key, int(numbers[-1])
    return None


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
            _LOG.warning("%s gets no more results of this run, which goes on: %s", self.name, self.failure)


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

        found = checkpoint_step(job.config.swept) if row["status"] in _ENDED else None
        if found is not None:
            # Jobs that differ only in their checkpoint share a series: ``reach, seed=1``.
            key, step = found
            others = [f"{name.rpartition('.')[2]}={value}" for name, value in job.config.swept.items() if name != key]
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
            _LOG.warning("tracking has stopped, and the run goes on: %s", first_line(error))
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
            _LOG.warning("tracking has not ended after %.0f s and is left behind", longest_close_s)


# Send a finished run, or the existing part of one, to a tracker.


def export_to(name: TrackerName, run: Path, output: Path) -> list[str]:
    """Send a run's directory to a tracker, and return lines for the user; ConfigError or ArenaError if that fails."""
    check_trackers([name], key=f"--{name}")
    plan = read_run_plan(run)
    tracker = OpenedTracker(name, partial(open_tracker, name, tracked_run(run, plan, output)))
    WatchedRun(run, plan, [tracker]).finish()
    if tracker.failure is not None:
        raise ArenaError(f"{name} did not take the run: {tracker.failure}")
    return [tracker.place or ""]


export_wandb = partial(export_to, TrackerName.WANDB)
export_tensorboard = partial(export_to, TrackerName.TENSORBOARD)
export_mlflow = partial(export_to, TrackerName.MLFLOW)


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
        table = _filled(rows)
        data = table.to_numpy(object).tolist()
        self._run.log({_TABLE: self._library.Table(columns=[*table], data=data, allow_mixed_types=True)})

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


def _filled(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table of rows, without the columns that are empty in all of them."""
    table = pd.DataFrame([dict(row) for row in rows], dtype=object).dropna(axis="columns", how="all")
    return table.where(table.notna(), None)


# TensorBoard: curves of each job with their intervals, the table of jobs, and films of failures as moving pictures.

_INTERVAL = ("success_rate", "success_low", "success_high")
_EVENTS = "events.out.tfevents"
_EARLIER_FILES = 3
_FRAMES_OF_A_FILM = 60
_LONGER_SIDE_PIXELS = 240


class TensorboardTracker(Tracker):
    """Event files. TensorBoard shows GIFs but no videos, so films become GIFs of at most 60 frames."""

    def __init__(self, run: TrackedRun) -> None:
        self._directory = run.directory / "tensorboard"
        self._writing = run.directory / ".tensorboard" if run.series else self._directory
        if run.series:
            # A killed process leaves its files.
            shutil.rmtree(self._writing, ignore_errors=True)
        # A reader that knows earlier files drops their points from the purge step on.
        writer = imported("torch.utils.tensorboard.writer:SummaryWriter")
        self._writer: Any = writer(str(self._writing), purge_step=0 if run.series else None)
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
        if self._writing != self._directory:
            # The file of a series is named after those of earlier processes, in the order in which readers read.
            earlier = sorted(self._directory.glob(f"{_EVENTS}.*"))
            number = 1 + (int(earlier[-1].suffix[1:]) if earlier else 0)
            self._directory.mkdir(parents=True, exist_ok=True)
            [written] = self._writing.iterdir()
            written.replace(self._directory / f"{_EVENTS}.{number:06d}")
            shutil.rmtree(self._writing)
            # A file that is removed while a reader reads it would keep the reader from continuing to the next.
            for file in earlier[:-_EARLIER_FILES]:
                file.unlink(missing_ok=True)
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
    table = _filled(rows)
    if len(rows) == 1:
        table = pd.DataFrame({"key": list(table), "value": [*table.iloc[0]]}, dtype=object)
    cells = [
        ["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in line]
        for line in table.to_numpy(object).tolist()
    ]
    return markdown_table(pd.DataFrame(cells, columns=table.columns))


# MLflow: a run of its own for each job, below one for the whole, with settings, curves and videos.

_ID_TAG = "isaaclab_arena.run_id"
_JOB_TAG = "isaaclab_arena.job"
_LONGEST_VALUE = 500
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
        prefix = f"{CHECKPOINTS}/{_allowed(measures.series)}"
        for name, value in measures.values.items():
            self._client.log_metric(self._whole, f"{prefix}/{name}", value, step=measures.step)

    def log_film(self, film: FailureFilm) -> None:
        """Store the video among the job's files, in ``films``."""
        self._client.log_artifact(self._job(film.job), str(film.path), "films")

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the table as the file ``jobs.json``, in the form that MLflow shows as a table."""
        table = _filled(rows)
        document = {"columns": [*table], "data": table.to_numpy(object).tolist()}
        self._client.log_dict(self._whole, document, "jobs.json")
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
            self._client.log_param(run_id, _allowed(key), str(value)[:_LONGEST_VALUE])
        return run_id


def _allowed(name: str) -> str:
    """Return a name with the characters that MLflow accepts: letters, digits, and a few signs."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
