"""The services that keep results: Weights & Biases, TensorBoard and MLflow. Their libraries load with a tracker."""

import io
import logging
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.registry import imported, optional_library
from isaaclab_arena.results.columns import markdown_table
from isaaclab_arena.tracking import trackers

# Weights & Biases: curves of each job, the table of jobs, videos of failures, and the jobs' settings.

_STEP = "checkpoint_step"
_EPISODES = "episodes"
_TABLE = "jobs"
_TAKEN = frozenset({_STEP, trackers.CHECKPOINTS, _TABLE})
"""Keys that are no job's."""

_LONGEST_START_S = 30


class WandbTracker(trackers.Tracker):
    """Weights & Biases, or its files on this machine if no key is known."""

    def __init__(self, run: trackers.TrackedRun) -> None:
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
            project=wanted.project or trackers.PROJECT,
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
        self._run.define_metric(f"{trackers.CHECKPOINTS}/*", step_metric=_STEP)
        self._keys = job_keys(run.jobs)
        self._jobs: set[str] = set()

    def log_job(self, measures: trackers.JobMeasures) -> None:
        """Add a point to the curves ``<job>/success_rate`` and so on."""
        key = self._keys[measures.job]
        axis = f"{key}/{_EPISODES}"
        if measures.job not in self._jobs:
            self._jobs.add(measures.job)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{key}/*", step_metric=axis)
        values = {f"{key}/{name}": value for name, value in measures.values.items()}
        self._run.log({**values, axis: measures.episodes})

    def log_checkpoint(self, measures: trackers.CheckpointMeasures) -> None:
        """Add a point to the curves ``checkpoints/<series>/success_rate`` and so on."""
        prefix = f"{trackers.CHECKPOINTS}/{measures.series}"
        values = {f"{prefix}/{name}": value for name, value in measures.values.items()}
        self._run.log({**values, _STEP: measures.step})

    def log_film(self, film: trackers.FailureFilm) -> None:
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
_EARLIER_FILES = 3
_FRAMES_OF_A_FILM = 60
_LONGER_SIDE_PIXELS = 240


class TensorboardTracker(trackers.Tracker):
    """Event files. TensorBoard shows GIFs but no videos, so films become GIFs of at most 60 frames."""

    def __init__(self, run: trackers.TrackedRun) -> None:
        self._directory = run.directory / "tensorboard"
        # Each file of a series has all of its points: a reader drops those of earlier files from the purge step on. A
        # file that is removed while a reader reads it would keep the reader from continuing to the next.
        earlier = sorted(self._directory.glob("events.out.tfevents.*")) if run.series else []
        for file in earlier[:-_EARLIER_FILES]:
            file.unlink(missing_ok=True)
        writer = imported("torch.utils.tensorboard.writer:SummaryWriter")
        self._writer: Any = writer(str(self._directory), purge_step=0 if run.series else None)
        self._num_tables = 0
        tags = [*run.jobs, *(f"{trackers.CHECKPOINTS}/{series}" for series in run.series)]
        rates = {tag: ["Margin", [f"{tag}/{name}" for name in _INTERVAL]] for tag in tags}
        self._writer.add_custom_scalars({"success rates with 95 % intervals": rates})
        for job, settings in run.jobs.items():
            self._writer.add_text(f"{job}/settings", _markdown([settings]))
        self._writer.add_text("settings", _markdown([run.settings]))

    def log_job(self, measures: trackers.JobMeasures) -> None:
        """Add a point to the curves ``<job>/success_rate`` and so on, over finished episodes."""
        for name, value in measures.values.items():
            self._writer.add_scalar(f"{measures.job}/{name}", value, global_step=measures.episodes)

    def log_checkpoint(self, measures: trackers.CheckpointMeasures) -> None:
        """Add a point to the curves ``checkpoints/<series>/success_rate`` and so on, over training steps."""
        for name, value in measures.values.items():
            self._writer.add_scalar(
                f"{trackers.CHECKPOINTS}/{measures.series}/{name}", value, global_step=measures.step
            )

    def log_film(self, film: trackers.FailureFilm) -> None:
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
_REFUSED = re.compile(r"[^\w\-. /]")  # MLflow accepts letters, digits, and a few signs
_RUNS_OF_A_PAGE = 1_000


class MlflowTracker(trackers.Tracker):
    """The server of ``MLFLOW_TRACKING_URI``, or an SQLite file on this machine."""

    keeps_series = True  # the store keeps series, on this machine too

    def __init__(self, run: trackers.TrackedRun) -> None:
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
        name = library.environment_variables.MLFLOW_EXPERIMENT_NAME.get() or trackers.PROJECT
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

    def log_job(self, measures: trackers.JobMeasures) -> None:
        """Add a point to the curves of the job's own run, over finished episodes."""
        for name, value in measures.values.items():
            self._client.log_metric(self._job(measures.job), name, value, step=measures.episodes)

    def log_checkpoint(self, measures: trackers.CheckpointMeasures) -> None:
        """Add a point to the whole run's curves ``checkpoints/<series>/success_rate``, over training steps."""
        prefix = f"{trackers.CHECKPOINTS}/{_REFUSED.sub('_', measures.series)}"
        for name, value in measures.values.items():
            self._client.log_metric(self._whole, f"{prefix}/{name}", value, step=measures.step)

    def log_film(self, film: trackers.FailureFilm) -> None:
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
            self._client.log_param(run_id, _REFUSED.sub("_", key), str(value)[:_LONGEST_VALUE])
        return run_id
