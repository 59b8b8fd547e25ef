"""Show a run in Weights & Biases: curves of each job, the table of jobs, videos of failures, and the jobs' settings."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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
        self._is_online = mode == "online"
        run.directory.mkdir(parents=True, exist_ok=True)
        # Files of an earlier watch process are removed at the end, because this one sends the whole series again.
        earlier = run.directory.glob(f"wandb/offline-run-*-{run.run_id}")
        self._replaced = [*earlier] if run.series and not self._is_online else []
        self._run: Any = self._library.init(
            project=wanted.project or PROJECT,
            name=run.name,
            id=run.run_id,
            resume="allow" if self._is_online else None,
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

    @property
    def keeps_series(self) -> bool:
        """True for runs on a server."""
        return self._is_online

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
        video = self._library.Video(str(film.path), caption=film.caption, format="mp4")
        self._run.log({f"{self._keys[film.job]}/films": video})

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show the jobs as the table ``jobs``."""
        columns = filled_columns(rows)
        data = [[row.get(name) for name in columns] for row in rows]
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
