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

from isaaclab_arena.distributed.context import machine_identity, process_is_running, process_start_ticks
from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import LongWork
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import read_whole

# The status of a rank: one small file that the rank rewrites every second and the other ranks read.

_LOG = logging.getLogger(__name__)


class RankState(StrEnum):
    """The state of a rank. The last three are final."""

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
    """The latest status of a rank, as it wrote it."""

    rank: int
    run_id: str  # of this start of the program; an earlier start leaves its files behind
    host: str  # name of the machine, for people
    machine: str  # identity of the machine, so that process numbers can be compared
    pid: int
    start_ticks: int | None  # start time of the process, None if the system does not report it
    state: RankState = RankState.STARTING
    exited: bool = False  # last status: the process is about to end
    current_job: str | None = None  # None between jobs
    preparing: str | None = None  # start-up phase in words, None after the first control step
    job_episodes_done: int = 0  # that ended on this rank
    job_episodes_total: int = 0  # of this rank; 0 if ranks share the job or the number is unknown
    job_stepping_s: float = 0.0  # since the first control step of the job
    jobs_done: int = 0  # completed or failed
    jobs_failed: int = 0
    jobs_total: int = 0
    episodes_done: int = 0
    episodes_total: int = 0  # of this rank, as far as known beforehand
    successes: int = 0
    scored: int = 0  # episodes whose success was measured
    errors: int = 0  # episodes that ended in an error
    env_steps: int = 0  # control steps, summed over running env slots
    steps_per_s: float = 0.0  # over the last beats
    long_work: str | None = None  # such as ``consolidating``, instead of steps or beside them
    long_work_job: str | None = None  # the finished job of that work, None: the current job
    long_work_done: int = 0  # episodes processed, of `long_work_total`
    long_work_total: int = 0
    beat: int = 0  # number of writes of the file
    updated_at: str = ""  # by the clock of its machine, for people

    @property
    def makes_steps(self) -> bool:
        """Whether the rank can make steps: it has no long work, or does it beside a job."""
        return self.long_work is None or (self.long_work_job is not None and self.current_job is not None)

    @classmethod
    def of_this_process(cls, *, rank: int, run_id: str, jobs_total: int = 0, episodes_total: int = 0) -> Self:
        """Return the initial status of this process."""
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
    """Return the path of a rank's status file."""
    return output_directory / "logs" / f"rank{rank}.status.json"


def write_rank_status(output_directory: Path, status: RankStatus) -> None:
    """Replace the rank's status file atomically: a reader sees the old content or the new one."""
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
    """Return a rank's latest status; None if it is missing, unreadable or of another `run_id` (None accepts any)."""
    try:
        fields: dict[str, Any] = json.loads(read_whole(status_path(output_directory, rank)).decode())
        status = RankStatus(**{**fields, "state": RankState(fields["state"])})
    except (StorageError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return status if run_id is None or status.run_id == run_id else None


# Judge from the status files which ranks work, have ended or are dead, and wait for them.


class RankFate(StrEnum):
    """The fate of a rank. Only ``WORKING`` is not final."""

    WORKING = "working"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """The knowledge of one rank about another one."""

    rank: int
    fate: RankFate
    status: RankStatus | None  # latest, None if it has never written one
    alive: bool  # its process exists; a finished rank may still wait for the others
    silent_s: float = 0.0  # time without a new heartbeat, by the observing rank's clock


class RankWatch:
    """Reads the status of every rank and judges which of them are alive."""

    # A rank on this node is alive while its process exists. A rank on another node is alive while its heartbeat
    # changes, by this node's monotonic clock. Clocks of different nodes are never compared.
    def __init__(
        self,
        output_directory: Path,
        *,
        world_size: int,
        run_id: str,  # of this start of the program
        dead_after_s: float = 60.0,  # without a heartbeat, for a rank on another node
        missing_after_s: float = 20.0,  # for a rank that has never written a status
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
        reports = []
        for rank in range(self._world_size):
            status = read_rank_status(self._output_directory, rank, run_id=self._run_id)

            # The silence counts from the moment at which this process first saw the latest heartbeat.
            beat, at_s = -1 if status is None else status.beat, self._clock()
            last_beat, since = self._last_beat.get(rank, (None, at_s))
            if beat != last_beat:
                since = at_s
                self._last_beat[rank] = (beat, at_s)
            silent_s = at_s - since

            if status is None:
                alive = silent_s < self._missing_after_s
            elif status.exited:
                alive = False
            elif status.machine == self._machine:
                alive = process_is_running(status.pid, status.start_ticks)
            else:
                alive = silent_s < self._dead_after_s

            if status is not None and status.state.is_final:
                fate = RankFate(status.state)
            else:
                fate = RankFate.WORKING if alive else RankFate.DEAD
            reports.append(RankReport(rank=rank, fate=fate, status=status, alive=alive, silent_s=silent_s))
        return tuple(reports)


def wait_for_ranks(
    watch: RankWatch,
    *,
    own_rank: int | None = None,  # never waited for, whatever its status
    on_look: Callable[[Sequence[RankReport]], None] = lambda _: None,  # called with the reports of each look
    stop_requested: Callable[[], bool] = lambda: False,
    stop_grace_s: float = 10.0,  # time of the ranks to finish after a stop
    # A rank that is silent this long is not waited for, because other ranks took its work over. None: wait.
    stalled_after_s: float | None = None,
    interval_s: float = 0.5,
) -> tuple[RankReport, ...]:
    """Wait until no rank works any more, without a time limit. Return one report per rank, by rank."""
    # A rank whose fate is still WORKING at the end has stalled, or did not finish within `stop_grace_s` after a stop.
    stop_by: float | None = None
    while True:
        reports = watch.look()
        on_look(reports)
        working = [each for each in reports if each.rank != own_rank and each.fate is RankFate.WORKING]
        if not any(stalled_after_s is None or each.silent_s < stalled_after_s for each in working):
            return reports
        if stop_by is None and stop_requested():
            stop_by = time.monotonic() + stop_grace_s
        if stop_by is not None and time.monotonic() >= stop_by:
            return reports
        time.sleep(interval_s)


def lowest_live_rank(reports: Sequence[RankReport]) -> int | None:
    """Return the rank that merges the results: the lowest whose process exists, None if none does."""
    return next((report.rank for report in reports if report.alive), None)


# Write a rank's status once a second, from a separate thread: its heartbeat.


class StatusPublisher:
    """Writes a rank's status file every `interval_s` [s] from a separate thread, as a context manager or started."""

    # While a job runs the rank's main thread only counts; it never waits for the disk.
    def __init__(self, output_directory: Path, status: RankStatus, *, interval_s: float = 1.0) -> None:
        self._output_directory = output_directory
        self._status = status
        self._interval_s = interval_s
        self._env_steps = status.env_steps
        self._long_work: LongWork | None = None
        self._work_beside: tuple[str, LongWork] | None = None
        self._episodes_left = 0
        self._corrects_total = True
        self.is_heard = True  # the last write succeeded
        self._stepping_since: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=10)
        self._status_lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_closed, name="rank-status", daemon=True)

    @property
    def status(self) -> RankStatus:
        """The current status of the rank."""
        return dataclasses.replace(self._status, env_steps=self._env_steps)

    def start(self) -> Self:
        """Write the first status (`StorageError` if impossible) and start the thread. Later errors are logged."""
        path = status_path(self._output_directory, self._status.rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop the thread and write the last status. May be called more than once."""
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
        """Set the rank's state; a final state is written at once."""
        self._update(state=state)
        if state.is_final:
            self._write_or_log()

    def start_job(self, name: str, *, num_episodes: int | None = 0) -> None:
        """Publish the job that begins, with its share of ``episodes_total``; None if ranks share the total."""
        # At the end of a job with a share the total is corrected by the episodes that really ran.
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
        """Publish the start-up phase of the current job in words, None after its first control step."""
        if doing is None and self._stepping_since is None:
            self._stepping_since = time.monotonic()
        self._update(preparing=doing)

    def leave_job(self) -> None:
        """Publish that no further episode of the current job runs."""
        self._update(
            current_job=None,
            preparing=None,
            episodes_total=self._status.episodes_total - (self._episodes_left if self._corrects_total else 0),
        )
        self._episodes_left = 0

    def leave_the_rest(self) -> None:
        """Publish that the rank's remaining episodes are not needed."""
        self._update(episodes_total=self._status.episodes_done)

    def finish_job(self, *, failed: bool = False) -> None:
        """Count a job whose report is written. The next job may have begun."""
        with self._status_lock:
            jobs_done, jobs_failed = self._status.jobs_done + 1, self._status.jobs_failed + int(failed)
            self._status = dataclasses.replace(self._status, jobs_done=jobs_done, jobs_failed=jobs_failed)
        self._write_or_log()

    def count_env_steps(self, number: int) -> None:
        """Count control steps of running env slots. Cheap: called in every step."""
        self._env_steps += number

    def hear(self, long_work: LongWork | None) -> None:
        """Publish the progress of long work, None if there is none. Cheap: called for every episode."""
        self._long_work = long_work

    def hear_of(self, job: str, long_work: LongWork | None) -> None:
        """Publish the progress of long work for a finished job, beside the current one; see `hear`."""
        self._work_beside = None if long_work is None else (job, long_work)

    def count_episode(self, *, success: bool | None, error: bool = False) -> None:
        """Count a finished episode. `success` is None if it was not measured."""
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
            if self.is_heard:
                _LOG.warning("cannot write this rank's status, so others may take it for dead: %s", error)
            self.is_heard = False
        else:
            self.is_heard = True

    def _write(self) -> None:
        # Two locks let the main thread count while the heartbeat thread waits for a slow disk.
        with self._file_lock:
            with self._status_lock:
                self._recent.append((time.monotonic(), self._env_steps))
                (since, steps), (until, steps_now) = self._recent[0], self._recent[-1]
                # Work of the current job comes first, because it keeps the rank from making steps.
                job, work = None, self._long_work
                beside = self._work_beside
                if work is None and beside is not None:
                    job, work = beside
                self._status = dataclasses.replace(
                    self._status,
                    env_steps=steps_now,
                    steps_per_s=round((steps_now - steps) / (until - since), 1) if until > since else 0.0,
                    job_stepping_s=0.0 if self._stepping_since is None else round(until - self._stepping_since, 1),
                    long_work=None if work is None else work.doing,
                    long_work_job=job,
                    long_work_done=0 if work is None else work.done,
                    long_work_total=0 if work is None else work.total,
                    beat=self._status.beat + 1,
                    updated_at=now(),
                )
            write_rank_status(self._output_directory, self._status)
