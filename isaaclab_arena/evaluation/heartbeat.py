"""The heartbeats of ranks: each writes its status once a second, and the others judge it."""

import dataclasses
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from isaaclab_arena import paths as clock
from isaaclab_arena.distributed.process import machine_identity, process_is_running, process_start_ticks
from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import LongWork
from isaaclab_arena.storage.atomic import read_whole

# The status of a rank: one small file that the rank rewrites every second and the other ranks read.

_LOG = logging.getLogger(__name__)
_SPEED_WINDOW = 10


class RankState(StrEnum):
    """What a rank is doing. The last three are final."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether the rank's jobs are over."""
        return self in (RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED)


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """What a rank last said about itself.

    Attributes:
        rank: Its number among all ranks.
        run_id: Which start of the program it belongs to; an earlier start leaves its files behind.
        host: Name of its machine, for people.
        machine: Identity of its machine, for comparing process numbers.
        pid: Its process number.
        start_ticks: Start time of the process, None where the system does not tell.
        state: What it is doing.
        exited: Whether this is its last word: the process is about to end.
        current_job: The job it runs, None between jobs.
        preparing: What that job does before its first control step, in words; None once it has made one.
        job_episodes_done: Episodes of that job that have ended here.
        job_episodes_total: Episodes of that job that this rank was given, 0 where ranks share it or nobody knows.
        job_stepping_s: How long that job has been past its preparations [s].
        jobs_done: Jobs that have ended, however they ended.
        jobs_failed: Those of them that failed.
        jobs_total: Jobs it was given.
        episodes_done: Episodes that have ended.
        episodes_total: Episodes it was given, as far as known beforehand.
        successes: Episodes that succeeded.
        scored: Episodes for which success was measured.
        errors: Episodes that ended in an error.
        env_steps: Control steps summed over running env slots.
        steps_per_s: The same per second, over the last beats [1/s].
        long_work: What it does instead of steps or beside them, in a word such as ``consolidating``; None while it does
            nothing long.
        long_work_job: The finished job for which it does that, None where it is for the current one.
        long_work_done: How many episodes it has done that with.
        long_work_total: How many there are.
        beat: Counts how often the file was written.
        updated_at: When, by the clock of its machine; for people.
    """

    rank: int
    run_id: str
    host: str
    machine: str
    pid: int
    start_ticks: int | None
    state: RankState = RankState.STARTING
    exited: bool = False
    current_job: str | None = None
    preparing: str | None = None
    job_episodes_done: int = 0
    job_episodes_total: int = 0
    job_stepping_s: float = 0.0
    jobs_done: int = 0
    jobs_failed: int = 0
    jobs_total: int = 0
    episodes_done: int = 0
    episodes_total: int = 0
    successes: int = 0
    scored: int = 0
    errors: int = 0
    env_steps: int = 0
    steps_per_s: float = 0.0
    long_work: str | None = None
    long_work_job: str | None = None
    long_work_done: int = 0
    long_work_total: int = 0
    beat: int = 0
    updated_at: str = ""

    @property
    def makes_steps(self) -> bool:
        """Whether it is free to make steps: it does nothing long, or does it beside a job."""
        return self.long_work is None or (self.long_work_job is not None and self.current_job is not None)

    @classmethod
    def of_this_process(cls, *, rank: int, run_id: str, jobs_total: int = 0, episodes_total: int = 0) -> Self:
        """Return the status with which this process starts."""
        return cls(
            rank=rank,
            run_id=run_id,
            host=socket.gethostname(),
            machine=machine_identity(),
            pid=os.getpid(),
            start_ticks=process_start_ticks(os.getpid()),
            jobs_total=jobs_total,
            episodes_total=episodes_total,
        )


def status_path(output_directory: Path, rank: int) -> Path:
    """Return where a rank's status lies."""
    return output_directory / "logs" / f"rank{rank}.status.json"


def write_rank_status(output_directory: Path, status: RankStatus) -> None:
    """Replace the rank's status file; a reader sees the old one or the new one, never a part."""
    path = status_path(output_directory, status.rank)
    temporary = path.with_name(f".{path.name}.{status.pid}.tmp")
    try:
        temporary.write_text(json.dumps(dataclasses.asdict(status)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_rank_status(output_directory: Path, rank: int, *, run_id: str | None = None) -> RankStatus | None:
    """Return what a rank last said, None if it has said nothing that can be read.

    Args:
        output_directory: The run's directory.
        rank: Which rank.
        run_id: Ignore what belongs to another start of the program; None accepts any.
    """
    try:
        text = read_whole(status_path(output_directory, rank)).decode()
    except (StorageError, ValueError):
        return None
    return parse_rank_status(text, run_id=run_id)


def parse_rank_status(text: str, *, run_id: str | None = None) -> RankStatus | None:
    """Return the status that the text of a status file holds, None if it holds none; see `read_rank_status`."""
    try:
        fields: dict[str, Any] = json.loads(text)
        status = RankStatus(**{**fields, "state": RankState(fields["state"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return status if run_id is None or status.run_id == run_id else None


# Judges from the status files of all ranks which of them work, have ended or are dead, and waits for them.


class RankFate(StrEnum):
    """What has become of a rank. ``WORKING`` is the only one that is not final."""

    WORKING = "working"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank knows of another one.

    Attributes:
        rank: Which rank.
        fate: What has become of it.
        status: What it last said, None if it never said anything.
        alive: Whether its process is there: a rank that has finished may still be waiting for the others.
        silent_s: How long its heartbeat has not changed, by the clock of the rank that looks [s].
    """

    rank: int
    fate: RankFate
    status: RankStatus | None
    alive: bool
    silent_s: float = 0.0


class RankWatch:
    """Reads the status of every rank and judges which of them are alive.

    A rank on this node is alive while its process exists. A rank on another node is alive while its heartbeat changes,
    by this node's monotonic clock. Clocks of different nodes are never compared.

    Args:
        output_directory: The run's directory.
        world_size: Number of ranks.
        run_id: Which start of the program.
        dead_after_s: A rank of another node is dead after this long without a heartbeat [s].
        missing_after_s: A rank that has never written a status is dead after this long [s].
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        output_directory: Path,
        *,
        world_size: int,
        run_id: str,
        dead_after_s: float = 60.0,
        missing_after_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output_directory = output_directory
        self._world_size = world_size
        self._run_id = run_id
        self._dead_after_s = dead_after_s
        self._missing_after_s = missing_after_s
        self._clock = clock
        self._machine = machine_identity()
        self._last_beat: dict[int, tuple[int, float]] = {}

    def look(self) -> tuple[RankReport, ...]:
        """Read every rank's status, and return one report per rank, by rank."""
        return tuple(self.look_at(rank) for rank in range(self._world_size))

    def look_at(self, rank: int) -> RankReport:
        """Read one rank's status, and return a report."""
        status = read_rank_status(self._output_directory, rank, run_id=self._run_id)
        silent_s = self._silent_s(rank, -1 if status is None else status.beat)
        if status is None:
            alive = silent_s < self._missing_after_s
        elif status.exited:
            alive = False
        elif status.machine == self._machine:
            alive = process_is_running(status.pid, status.start_ticks)
        else:
            alive = silent_s < self._dead_after_s
        return RankReport(rank=rank, fate=_fate(status, alive=alive), status=status, alive=alive, silent_s=silent_s)

    def _silent_s(self, rank: int, beat: int) -> float:
        now = self._clock()
        last_beat, since = self._last_beat.get(rank, (None, now))
        if beat != last_beat:
            since = now
            self._last_beat[rank] = (beat, now)
        return now - since


def wait_for_ranks(
    watch: RankWatch,
    *,
    own_rank: int | None = None,
    on_look: Callable[[Sequence[RankReport]], None] = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    stop_grace_s: float = 10.0,
    stalled_after_s: float | None = None,
    interval_s: float = 0.5,
) -> tuple[RankReport, ...]:
    """Wait until no rank works any more, however long some take.

    Args:
        watch: Looks at the ranks.
        own_rank: The rank that waits. It does not wait for itself, whatever its status file says.
        on_look: Shown the reports each time.
        stop_requested: True once this process was told to stop.
        stop_grace_s: How long ranks may then take to finish [s].
        stalled_after_s: A rank that has been silent this long is not waited for, because others took its work over
            [s]; None waits as long as its process is there.
        interval_s: Time between two looks [s].

    Returns:
        One report per rank, by rank. A fate of ``WORKING`` is left only if the grace was not enough, or of a rank
        that is stalled.
    """
    stop_by: float | None = None
    while True:
        reports = watch.look()
        on_look(reports)
        others = [report for report in reports if report.rank != own_rank]
        if not any(_worth_waiting_for(report, stalled_after_s) for report in others):
            return reports
        if stop_by is None and stop_requested():
            stop_by = time.monotonic() + stop_grace_s
        if stop_by is not None and time.monotonic() >= stop_by:
            return reports
        time.sleep(interval_s)


def lowest_live_rank(reports: Sequence[RankReport]) -> int | None:
    """Return the rank that merges the results: 0, or the lowest whose process is there when 0 is gone."""
    return next((report.rank for report in reports if report.alive), None)


def _worth_waiting_for(report: RankReport, stalled_after_s: float | None) -> bool:
    if report.fate is not RankFate.WORKING:
        return False
    return stalled_after_s is None or report.silent_s < stalled_after_s


def _fate(status: RankStatus | None, *, alive: bool) -> RankFate:
    if status is not None and status.state.is_final:
        return {
            RankState.INTERRUPTED: RankFate.INTERRUPTED,
            RankState.FAILED: RankFate.FAILED,
        }.get(status.state, RankFate.FINISHED)
    if not alive:
        return RankFate.DEAD
    return RankFate.WORKING


# Writes a rank's status once a second, from a thread of its own: its heartbeat.


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
