"""Define what a service that keeps results is told of a run, and by which methods."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
