"""Show a run in MLflow: a run of its own for each job, below one for the whole, with settings, curves and videos."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from isaaclab_arena.registry import optional_library
from isaaclab_arena.tracking.trackers import (
    CHECKPOINTS,
    PROJECT,
    CheckpointMeasures,
    FailureFilm,
    JobMeasures,
    TrackedRun,
    Tracker,
    filled_columns,
)

_ID_TAG = "isaaclab_arena.run_id"
_JOB_TAG = "isaaclab_arena.job"
_LONGEST_VALUE = 500
_RUNS_OF_A_PAGE = 1_000


class MlflowTracker(Tracker):
    """The server of ``MLFLOW_TRACKING_URI``, or an SQLite file on this machine."""

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
        found = self._client.get_experiment_by_name(name)
        location = files.absolute().as_uri() if self._on_this_machine else None
        self._experiment = found.experiment_id if found else self._client.create_experiment(name, location)
        self._known = self._runs_of_before()
        self._whole = self._begun({_ID_TAG: run.run_id}, run.name, run.settings)
        self._jobs: dict[str, str] = {}

    @property
    def keeps_series(self) -> bool:
        """True: the store keeps series, on this machine too."""
        return True

    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to the curves of the job's own run, over finished episodes."""
        self._log(self._job(measures.job), measures.values, measures.episodes)

    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the whole run's curves ``checkpoints/<series>/success_rate``, over training steps."""
        prefix = f"{CHECKPOINTS}/{_allowed(measures.series)}"
        values = {f"{prefix}/{name}": value for name, value in measures.values.items()}
        self._log(self._whole, values, measures.step)

    def log_film(self, film: FailureFilm) -> None:
        """Store the video among the job's files, in ``films``."""
        self._client.log_artifact(self._job(film.job), str(film.path), "films")

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the table as the file ``jobs.json``, in the form that MLflow shows as a table."""
        columns = filled_columns(rows)
        table = {"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]}
        self._client.log_dict(self._whole, table, "jobs.json")
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

    def _runs_of_before(self) -> dict[str | None, str]:
        """Return the ids of this evaluation's runs by job, that of the whole run under None, from all pages."""
        found: dict[str | None, str] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                filter_string=f"tags.`{_ID_TAG}` = '{self._run.run_id}'",
                max_results=_RUNS_OF_A_PAGE,
                page_token=token,
            )
            found |= {run.data.tags.get(_JOB_TAG): run.info.run_id for run in page}
            token = page.token
            if not token:
                return found

    def _begun(self, tags: Mapping[str, str], name: str, settings: Mapping[str, Any]) -> str:
        """Return the id of the run with these tags, creating it if there is none."""
        known = self._known.get(tags.get(_JOB_TAG))
        if known is not None:
            return known
        run_id = self._client.create_run(self._experiment, tags=dict(tags), run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(run_id, _allowed(key), str(value)[:_LONGEST_VALUE])
        return run_id

    def _log(self, run_id: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(run_id, name, value, step=step)


def _allowed(name: str) -> str:
    """Return a name with the characters that MLflow accepts: letters, digits, and a few signs."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
