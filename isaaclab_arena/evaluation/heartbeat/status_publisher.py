"""Writes a rank's status once a second, from a thread of its own: its heartbeat."""

import dataclasses
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

from isaaclab_arena import paths as clock
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.heartbeat.rank_status import RankState, RankStatus, status_path, write_rank_status
from isaaclab_arena.logs import LongWork

_LOG = logging.getLogger(__name__)
_SPEED_WINDOW = 10


class StatusPublisher:
    """Writes a rank's status file, once a second, from a thread of its own.

    While a job runs the rank's main thread only counts; it never waits for the disk. Used as a context manager, or
    with `start` and `close`.

    Args:
        output_directory: The run's directory.
        status: What the rank says first.
        interval_s: Time between two beats [s].
    """

    def __init__(self, output_directory: Path, status: RankStatus, *, interval_s: float = 1.0) -> None:
        self._output_directory = output_directory
        self._status = status
        self._interval_s = interval_s
        self._env_steps = status.env_steps
        self._long_work: LongWork | None = None
        self._work_beside: tuple[str, LongWork] | None = None
        self._episodes_left = 0
        self._corrects_total = True
        self._silent = False
        self._stepping_since: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SPEED_WINDOW)
        self._status_lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_closed, name="rank-status", daemon=True)

    @property
    def status(self) -> RankStatus:
        """What the rank says now."""
        return dataclasses.replace(self._status, env_steps=self._env_steps)

    @property
    def is_heard(self) -> bool:
        """Whether what the rank said last could be written."""
        return not self._silent

    def start(self) -> Self:
        """Write the first status and start beating.

        Raises:
            StorageError: If the first status cannot be written; later failures are only logged.
        """
        path = status_path(self._output_directory, self._status.rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop beating and say that the process is about to end. May be called more than once."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._status.exited:
            self._update(exited=True)
            self._write_or_log()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None and not self._status.state.is_final:
            self._update(state=RankState.FAILED)
        self.close()

    def set_state(self, state: RankState) -> None:
        """Say what the rank is doing; a final state is written at once."""
        self._update(state=state)
        if state.is_final:
            self._write_or_log()

    def start_job(self, name: str, *, num_episodes: int | None = 0) -> None:
        """Say which job begins.

        Args:
            name: Name of the job.
            num_episodes: How many of ``episodes_total`` belong to it. At its end the total is corrected by what it
                really ran. None where ranks share the total, and none of them knows its part of it.
        """
        self._corrects_total = num_episodes is not None
        self._episodes_left = num_episodes or 0
        self._stepping_since = None
        self._update(
            state=RankState.RUNNING,
            current_job=name,
            preparing="getting ready",
            job_episodes_done=0,
            job_episodes_total=num_episodes or 0,
            job_stepping_s=0.0,
        )
        self._write_or_log()

    def prepare(self, doing: str | None) -> None:
        """Say what the current job does before its first control step.

        Args:
            doing: In words; None once that step is made.
        """
        if doing is None and self._stepping_since is None:
            self._stepping_since = time.monotonic()
        self._update(preparing=doing)

    def leave_job(self) -> None:
        """Say that no further episode of the current job runs."""
        self._update(
            current_job=None,
            preparing=None,
            episodes_total=self._status.episodes_total - (self._episodes_left if self._corrects_total else 0),
        )
        self._episodes_left = 0

    def leave_the_rest(self) -> None:
        """Say that no further episode is needed of those that the rank was given."""
        self._update(episodes_total=self._status.episodes_done)

    def finish_job(self, *, failed: bool = False) -> None:
        """Count a job that has ended: its report is written. The next one may have begun."""
        with self._status_lock:
            jobs_done, jobs_failed = self._status.jobs_done + 1, self._status.jobs_failed + int(failed)
            self._status = dataclasses.replace(self._status, jobs_done=jobs_done, jobs_failed=jobs_failed)
        self._write_or_log()

    def count_env_steps(self, number: int) -> None:
        """Count control steps of running env slots. Cheap: called in every step."""
        self._env_steps += number

    def hear(self, long_work: LongWork | None) -> None:
        """Say how far something long has come, None if there is nothing. Cheap: called for every episode."""
        self._long_work = long_work

    def hear_of(self, job: str, long_work: LongWork | None) -> None:
        """Say how far something long has come for a finished job, beside the current one; see `hear`."""
        self._work_beside = None if long_work is None else (job, long_work)

    def count_episode(self, *, success: bool | None, error: bool = False) -> None:
        """Count a finished episode.

        Args:
            success: Whether it succeeded, None where that was not measured.
            error: Whether it ended in an error.
        """
        self._episodes_left -= 1
        self._update(
            episodes_done=self._status.episodes_done + 1,
            job_episodes_done=self._status.job_episodes_done + 1,
            successes=self._status.successes + int(success is True),
            scored=self._status.scored + int(success is not None),
            errors=self._status.errors + int(error),
        )

    def _update(self, **changes: Any) -> None:
        with self._status_lock:
            self._status = dataclasses.replace(self._status, **changes)

    def _beat_until_closed(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._write_or_log()

    def _write_or_log(self) -> None:
        try:
            self._write()
        except OSError as error:
            if not self._silent:
                _LOG.warning("cannot write this rank's status, so others may take it for dead: %s", error)
            self._silent = True
        else:
            self._silent = False

    def _write(self) -> None:
        # Two locks, so that the main thread can go on counting while the other one waits for a slow disk.
        with self._file_lock:
            with self._status_lock:
                self._status = self._next_beat()
            write_rank_status(self._output_directory, self._status)

    def _next_beat(self) -> RankStatus:
        self._recent.append((time.monotonic(), self._env_steps))
        (since, steps), (now, steps_now) = self._recent[0], self._recent[-1]
        work, beside = self._long_work, self._work_beside
        job = None
        if work is None and beside is not None:
            job, work = beside
        return dataclasses.replace(
            self._status,
            env_steps=steps_now,
            steps_per_s=round((steps_now - steps) / (now - since), 1) if now > since else 0.0,
            job_stepping_s=0.0 if self._stepping_since is None else round(now - self._stepping_since, 1),
            long_work=None if work is None else work.doing,
            long_work_job=job,
            long_work_done=0 if work is None else work.done,
            long_work_total=0 if work is None else work.total,
            beat=self._status.beat + 1,
            updated_at=clock.now(),
        )
