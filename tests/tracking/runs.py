"""Runs for tests of trackers, and a tracker that keeps what it is told."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from isaaclab_arena.config.schema import Question
from isaaclab_arena.recording.video import VideoFile
from isaaclab_arena.storage.atomic import json_text, write_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE, VIDEOS_DIRECTORY, video_file_name
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.tracking.trackers import CheckpointMeasures, TrackedRun, Tracker
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report

CHECKPOINT = "policy_config_dict.checkpoint_path"


class NotingTracker(Tracker):
    """Keeps what it is told; where a reason is given, it refuses to be told of jobs."""

    def __init__(self, *, broken: str | None = None) -> None:
        self.jobs = []
        self.checkpoints = []
        self.films = []
        self.tables = []
        self.is_closed = False
        self._broken = broken

    def log_job(self, measures) -> None:
        if self._broken is not None:
            raise RuntimeError(self._broken)
        self.jobs.append(measures)

    def log_checkpoint(self, measures) -> None:
        self.checkpoints.append(measures)

    def log_film(self, film) -> None:
        self.films.append(film)

    def log_table(self, rows) -> None:
        self.tables.append(list(rows))

    def close(self) -> str:
        self.is_closed = True
        return "here"


def finished_run(directory: Path) -> Path:
    """Write a run of two checkpoints: four episodes, the second a failure that was filmed, and two successes."""
    directory.mkdir(parents=True, exist_ok=True)
    early, late = ({CHECKPOINT: f"runs/model_{step}.pt"} for step in (100, 200))
    write_plan(
        directory,
        planned("early", num_episodes=4, swept=early, policy_config={"checkpoint_path": early[CHECKPOINT]}),
        planned("late.v2", index=1, num_episodes=2, swept=late, policy_config={"remote_api_token": "hush"}),
    )
    write_lines(directory, commit_lines("sfse", job="early"))
    write_lines(directory, commit_lines("ss", job="late.v2"))
    for name in ("early", "late.v2"):
        write_report(directory, report(name))
    for index in (0, 1):
        write_film(directory, "early", index)
    return directory


def series_run(directory: Path) -> TrackedRun:
    """Return a watch of a training as services are told of it."""
    return TrackedRun(run_id="series", name="watch", directory=directory, settings={}, jobs={}, series=["reach"])


def write_film(directory: Path, job: str, index: int, *, num_frames: int = 3) -> Path:
    """Write a film of an episode, which grows brighter."""
    path = directory / job / VIDEOS_DIRECTORY / video_file_name(None, env_id=index % 4, episode_index=index)
    video = VideoFile(path, frames_per_second=10, title="brighter")
    for number in range(num_frames):
        video.add(np.full((48, 64, 3), number * 255 // num_frames, dtype=np.uint8))
    video.finish()
    return path


def stopped_run(directory: Path, *, episodes: int = 12) -> None:
    """Write a run of two jobs of 12 episodes, the seventh of which tells that the first job is better."""
    better = Question(name="better", jobs=("new", "old"), alpha=0.05, max_episodes=12)
    write_plan(directory, planned("new", num_episodes=12), planned("old", index=1, num_episodes=12))
    path = directory / RUN_PLAN_FILE
    write_text(path, json_text(replace(read_run_plan(directory), questions=(better,))), overwrite=True)
    for name, letter in (("new", "s"), ("old", "f")):
        write_lines(directory, commit_lines(letter * episodes, job=name))
        write_report(directory, report(name))


def points(*steps: int, rate: float = 0.5) -> list[CheckpointMeasures]:
    return [CheckpointMeasures(series="reach", step=step, values={"success_rate": rate}) for step in steps]
