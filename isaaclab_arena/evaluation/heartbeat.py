"""The progress of ranks: each writes its status once a second, the others judge it, and rank 0 shows it."""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isaaclab_arena.distributed.context import machine_identity, process_is_running, process_start_ticks
from isaaclab_arena.errors import ArenaError, StorageError, shortened
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.logs import LongWork, plain_text
from isaaclab_arena.paths import now
from isaaclab_arena.storage import atomic

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
    """The latest status of a rank, as it wrote it; by default the first one of this process."""

    rank: int
    run_id: str  # of this start of the program; an earlier start leaves its files behind
    host: str = field(default_factory=socket.gethostname)  # name of the machine, for people
    # Identity of the machine, so that process numbers can be compared.
    machine: str = field(default_factory=machine_identity)
    pid: int = field(default_factory=os.getpid)
    # Start time of the process, None if the system does not report it.
    start_ticks: int | None = field(default_factory=lambda: process_start_ticks(os.getpid()))
    state: RankState = RankState.STARTING
    exited: bool = False  # last status: the process is about to end
    current_job: str | None = None  # None between jobs
    preparing: str | None = None  # part of the start-up in words, None after the first control step
    job_episodes_done: int = 0  # that ended on this rank
    job_episodes_total: int = 0  # of this rank; 0 if ranks share the job or the number is unknown
    job_stepping_s: float = 0.0  # since the first control step of the job
    job_successes: int = 0  # of the current job, in this start of the program
    job_scored: int = 0  # episodes of the current job whose success was measured
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
    long_work: str | None = None  # such as ``consolidating``, instead of steps
    long_work_done: int = 0  # episodes processed, of `long_work_total`
    long_work_total: int = 0
    beat: int = 0  # number of writes of the file
    updated_at: str = ""  # by the clock of its machine, for people


def status_path(output_directory: Path, rank: int) -> Path:
    """Return the path of a rank's status file."""
    return output_directory / "logs" / f"rank{rank}.status.json"


def write_rank_status(output_directory: Path, status: RankStatus) -> None:
    """Replace the rank's status file atomically: a reader sees the old content or the new one."""
    atomic.write_text(status_path(output_directory, status.rank), json.dumps(asdict(status)), overwrite=True)


def read_rank_status(output_directory: Path, rank: int, *, run_id: str | None = None) -> RankStatus | None:
    """Return a rank's latest status; None if it is missing, unreadable or of another `run_id` (None accepts any)."""
    try:
        written = atomic.read_json(status_path(output_directory, rank))
        status = atomic.adapter(RankStatus).validate_python(written)
    except (StorageError, ValueError):
        return None
    # A default that a function makes describes this process, and never the rank that wrote the file.
    if not written.keys() >= {"state", *(each.name for each in fields(RankStatus) if each.default is MISSING)}:
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
    silent_s: float = 0.0  # time without a new heartbeat, by the observing rank's clock; see `_BLIND_AFTER_S`


_DEAD_AFTER_S = 60.0
"""Silence after which a rank on another node counts as dead [s]."""

_BLIND_AFTER_S = 5.0
"""After a longer pause between two looks, silence counts from the later one: nothing was seen in between [s]."""


@dataclass(kw_only=True)
class RankWatch:
    """Reads the status of every rank and judges which of them are alive."""

    # A rank on this node is alive while its process exists. A rank on another node is alive while its heartbeat
    # changes, by this node's monotonic clock. Clocks of different nodes are never compared.
    output_directory: Path = field(kw_only=False)
    world_size: int
    run_id: str  # of this start of the program
    missing_after_s: float = 20.0  # for a rank that has never written a status
    clock: Callable[[], float] = time.monotonic
    machine: str = field(default_factory=machine_identity)  # the one of this process, as at its start
    last_beat: dict[int, tuple[int, float]] = field(default_factory=dict)  # by rank: the latest beat, and its time
    _looked_at: float = field(default=float("-inf"), init=False)
    _watching_since: float = field(default=float("-inf"), init=False)

    def look(self) -> tuple[RankReport, ...]:
        """Read every rank's status, and return one report per rank, by rank."""
        reports, begins_s = [], self.clock()
        if begins_s - self._looked_at > _BLIND_AFTER_S:
            self._watching_since = begins_s
        for rank in range(self.world_size):
            status = read_rank_status(self.output_directory, rank, run_id=self.run_id)

            # The silence counts from the moment at which this process first saw the latest heartbeat.
            beat, at_s = -1 if status is None else status.beat, self.clock()
            last_beat, since = self.last_beat.get(rank, (None, at_s))
            if beat != last_beat:
                since = at_s
                self.last_beat[rank] = (beat, at_s)
            silent_s = at_s - since

            if status is None:
                alive = silent_s < self.missing_after_s
            elif status.exited:
                alive = False
            elif status.machine == self.machine:
                alive = process_is_running(status.pid, status.start_ticks)
            else:
                alive = silent_s < _DEAD_AFTER_S

            if status is not None and status.state.is_final:
                fate = RankFate(status.state)
            else:
                fate = RankFate.WORKING if alive else RankFate.DEAD
            silent_s = min(silent_s, at_s - self._watching_since)
            reports.append(RankReport(rank=rank, fate=fate, status=status, alive=alive, silent_s=silent_s))
        # A pause begins here: a look itself takes seconds with many ranks on a slow disk.
        self._looked_at = self.clock()
        return tuple(reports)


_NEW_BEAT_S = 6.0
"""Time within which a rank that works shows a new beat [s]; many ranks of a cluster deliver one in five seconds."""
UNUSUAL_SILENCE_S = 20.0
"""Time without a new heartbeat after which a rank is silent for longer than expected [s]: it writes once a second."""


def reports_from_files(
    output_directory: Path,
    *,
    world_size: int,
    run_id: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    pause: Callable[[float], object] = time.sleep,
    machine: str | None = None,  # of this process
) -> tuple[RankReport, ...]:
    """Judge ranks that this process has not watched so far, from their files; a rank without a file is not alive."""
    # On this machine the process itself decides. On another one the time in the file does, and as clocks differ, a
    # rank whose time is old gets a few seconds to show a new beat.
    machine, seen = machine or machine_identity(), dict[int, tuple[int, float]]()
    has_doubts = False
    for rank in range(world_size):
        status = read_rank_status(output_directory, rank, run_id=run_id)
        if status is None:
            continue
        try:
            silent_s = max((now() - datetime.fromisoformat(status.updated_at)).total_seconds(), 0.0)
        except (TypeError, ValueError):
            silent_s = 0.0
        seen[rank] = status.beat, silent_s
        has_doubts |= not status.state.is_final and status.machine != machine and silent_s > _DEAD_AFTER_S
    if has_doubts:
        pause(_NEW_BEAT_S)
    watch = RankWatch(output_directory, world_size=world_size, run_id=run_id, missing_after_s=0.0, machine=machine)
    at_s = watch.clock()
    watch.last_beat.update({rank: (beat, at_s - silent_s) for rank, (beat, silent_s) in seen.items()})
    return tuple(
        replace(each, silent_s=0.0 if each.status is None or each.status.beat != seen[each.rank][0] else silent_s)
        for each in watch.look()
        for silent_s in [seen.get(each.rank, (0, 0.0))[1]]
    )


def wait_for_ranks(
    look: Callable[[], tuple[RankReport, ...]],
    *,
    own_rank: int | None = None,  # never waited for, whatever its status
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
        reports = look()
        working = [each for each in reports if each.rank != own_rank and each.fate is RankFate.WORKING]
        if not any(stalled_after_s is None or each.silent_s < stalled_after_s for each in working):
            return reports
        if stop_by is None and stop_requested():
            stop_by = time.monotonic() + stop_grace_s
        if stop_by is not None and time.monotonic() >= stop_by:
            return reports
        time.sleep(interval_s)


# Write a rank's status once a second, from a separate thread: its heartbeat.


@contextmanager
def in_a_thread(loop: Callable[[Callable[[float], bool]], None], *, name: str) -> Iterator[None]:
    """Run `loop` beside a `with` block. Its argument waits so many seconds; once that returns True, it must return."""
    closing = threading.Event()
    thread = threading.Thread(target=loop, args=(closing.wait,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


class StatusPublisher(Observer):
    """Writes a rank's status file every `interval_s` [s] within a `with` block; counts its jobs' steps and episodes."""

    # While a job runs the rank's main thread only counts; it never waits for the disk.
    sees_pictures = False

    def __init__(self, output_directory: Path, status: RankStatus, *, interval_s: float = 1.0) -> None:
        self.output_directory = output_directory
        self._status = status
        self._interval_s = interval_s
        self._env_steps = status.env_steps
        self._long_work: LongWork | None = None
        self._corrects_total = True
        self.is_written = True  # the last write succeeded
        self._stepping_since: float | None = None
        self._rates: dict[str, tuple[int, int]] = {}  # by job: its successes, and episodes with measured success
        self._recent: deque[tuple[float, int]] = deque(maxlen=10)
        self._status_lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._beating = in_a_thread(self._beat, name="rank-status")

    @property
    def status(self) -> RankStatus:
        """The current status of the rank."""
        return replace(self._status, env_steps=self._env_steps)

    def __enter__(self) -> Self:
        # `StorageError` if the first status cannot be written. Later errors are logged.
        self._write()
        self._beating.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        is_lost = exception[0] is not None and not self._status.state.is_final
        self._beating.__exit__(None, None, None)
        self.publish(exited=True, state=RankState.FAILED if is_lost else self._status.state)

    def update(self, **changes: Any) -> None:
        """Change fields of the status; the next beat writes them."""
        with self._status_lock:
            self._status = replace(self._status, **changes)

    def publish(self, **changes: Any) -> None:
        """Change fields of the status, and write it at once."""
        self.update(**changes)
        self._write_or_log()

    def start_job(self, name: str, *, num_episodes: int | None = 0) -> None:
        """Publish the job that begins, with its share of ``episodes_total``; None if ranks share the total."""
        # At the end of a job with a share the total is corrected by the episodes that really ran.
        self._corrects_total = num_episodes is not None
        self._stepping_since = None
        # A rank may take up a part of a job that it has left before.
        successes, scored = self._rates.get(name, (0, 0))
        self.publish(
            state=RankState.RUNNING,
            current_job=name,
            preparing="getting ready",
            job_episodes_done=0,
            job_episodes_total=num_episodes or 0,
            job_stepping_s=0.0,
            job_successes=successes,
            job_scored=scored,
        )

    def prepare(self, doing: str | None) -> None:
        """Publish the part of the current job's start-up in words, None after its first control step."""
        if doing is None and self._stepping_since is None:
            self._stepping_since = time.monotonic()
        self.update(preparing=doing)

    def leave_job(self) -> None:
        """Publish that no further episode of the current job runs."""
        status = self._status
        left = status.job_episodes_total - status.job_episodes_done if self._corrects_total else 0
        self.update(current_job=None, preparing=None, episodes_total=status.episodes_total - left)

    def finish_job(self, *, failed: bool = False) -> None:
        """Count a job whose report is written. Another job may have begun, as compared jobs take turns."""
        with self._status_lock:
            jobs_done, jobs_failed = self._status.jobs_done + 1, self._status.jobs_failed + int(failed)
            self._status = replace(self._status, jobs_done=jobs_done, jobs_failed=jobs_failed)
        self._write_or_log()

    def set_long_work(self, long_work: LongWork | None) -> None:
        """Publish the progress of long work for the current job; it ends with None."""
        # Cheap, because it is called for every episode.
        self._long_work = long_work

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count a control step of each running env slot."""
        del environment
        self._env_steps += transition.num_running

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Count the episode, its success if measured, and its error."""
        del environment
        is_success, is_scored = int(record.success is True), int(record.success is not None)
        job_successes, job_scored = self._status.job_successes + is_success, self._status.job_scored + is_scored
        if self._status.current_job is not None:
            self._rates[self._status.current_job] = job_successes, job_scored
        self.update(
            episodes_done=self._status.episodes_done + 1,
            job_episodes_done=self._status.job_episodes_done + 1,
            job_successes=job_successes,
            job_scored=job_scored,
            successes=self._status.successes + is_success,
            scored=self._status.scored + is_scored,
            errors=self._status.errors + int(record.outcome is Outcome.ERROR),
        )

    def _beat(self, pause: Callable[[float], bool]) -> None:
        while not pause(self._interval_s):
            self._write_or_log()

    def _write_or_log(self) -> None:
        try:
            self._write()
        except StorageError as error:
            if self.is_written:
                _LOG.warning("cannot write this rank's status, so others may take it for dead: %s", error)
            self.is_written = False
        else:
            self.is_written = True

    def _write(self) -> None:
        # Two locks let the main thread count while the heartbeat thread waits for a slow disk.
        with self._file_lock:
            with self._status_lock:
                self._recent.append((time.monotonic(), self._env_steps))
                (since, steps), (until, steps_now) = self._recent[0], self._recent[-1]
                work = self._long_work
                self._status = replace(
                    self._status,
                    env_steps=steps_now,
                    steps_per_s=round((steps_now - steps) / (until - since), 1) if until > since else 0.0,
                    job_stepping_s=0.0 if self._stepping_since is None else round(until - self._stepping_since, 1),
                    long_work=None if work is None else work.doing,
                    long_work_done=0 if work is None else work.done,
                    long_work_total=0 if work is None else work.total,
                    beat=self._status.beat + 1,
                    updated_at=now(),
                )
            write_rank_status(self.output_directory, self._status)


# Show the progress of all ranks: a live table on a terminal, else log lines, and the run's page.

_MAX_RATES, _MAX_NAME = 3, 40
_FATE_STYLES = {RankFate.WORKING: "", RankFate.FINISHED: "green", RankFate.INTERRUPTED: "yellow"}


def keep_showing(
    look: Callable[[], Sequence[RankReport]],
    pause: Callable[[float], bool],
    *,
    console: Console | None = None,
    line_interval_s: float = 10.0,
) -> None:
    """Show the ranks' progress until `pause` returns True: a live table on a terminal, else a line now and then."""
    console, began_s = console or Console(stderr=True), time.monotonic()
    with ExitStack() as stack:
        live, is_last = None, False
        if console.is_interactive:
            # Transient: the table of results takes its place.
            live = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
            # Send console log lines through the live display, which they would otherwise tear.
            for handler in logging.getLogger("isaaclab_arena").handlers:
                if type(handler) is logging.StreamHandler:
                    stack.callback(handler.setStream, handler.stream)
                    handler.setStream(sys.stderr)
        while not is_last:
            is_last = pause(line_interval_s if live is None else 0.5)
            reports, elapsed_s = look(), time.monotonic() - began_s
            if live is None:
                _LOG.info("%s", progress_line(reports, elapsed_s=elapsed_s))
            else:
                live.update(progress_table(reports, elapsed_s=elapsed_s), refresh=True)


def keep_writing(
    write: Callable[[], object], pause: Callable[[float], bool], *, cost_clock: Callable[[], float] = time.thread_time
) -> None:
    """Write a page every 30 s, or less often to stay below 1 % of the time, until `pause` returns True."""
    # A page that cannot be written is skipped, and the next one is tried.
    pause_s = 30.0
    while not pause(pause_s):
        began = cost_clock()
        try:
            write()
        except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            _LOG.debug("the report could not be updated: %s", error)
        pause_s = max(30.0, 100.0 * (cost_clock() - began))


def progress_table(reports: Sequence[RankReport], *, elapsed_s: float) -> RenderableType:
    """Return the live display: a bar for the whole run, and a table with one row for each rank."""
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("rank", justify="right")
    table.add_column("jobs", justify="right")
    table.add_column("current job", ratio=1, no_wrap=True, overflow="ellipsis")
    for heading in ("episodes", "success", "errors", "steps/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        style, status = _FATE_STYLES.get(report.fate, "red"), report.status
        if status is None:
            table.add_row(*map(Text, (str(report.rank), "-", doing_in_words(report), *"----")), style=style)
            continue

        jobs, episodes = (
            f"{done}/{total}" if total else str(done)
            for done, total in ((status.jobs_done, status.jobs_total), (status.episodes_done, status.episodes_total))
        )
        cells = (
            str(report.rank),
            jobs,
            doing_in_words(report),
            episodes,
            f"{status.job_successes / status.job_scored:.0%}" if status.current_job and status.job_scored else "-",
            str(status.errors),
            f"{status.steps_per_s:,.0f}" if report.alive and status.long_work is None else "-",
        )
        # A job's name may hold brackets, which are no markup.
        table.add_row(*map(Text, cells), style=style)

    share, counts, times, preparing = _texts(reports, elapsed_s)
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=fraction_done(reports)), Text(", ".join([share, *times])))
    below = Text(", ".join([*counts, *preparing]), no_wrap=True, overflow="ellipsis")
    # The bar comes first, because a terminal that is too small cuts off the end.
    return Group(bar, below, table)


def doing_in_words(report: RankReport) -> str:
    """Return the current job of a rank with the part of its start-up and long work, or the end of the rank."""
    status = report.status
    if status is None:
        return "has not started yet" if report.fate is RankFate.WORKING else "has died"
    if report.fate is not RankFate.WORKING:
        return str(report.fate) if status.current_job is None else f"{report.fate} in {status.current_job}"
    long_work = status.long_work if report.alive else None
    doing = status.current_job or str(status.state)
    if status.preparing is not None and status.current_job is not None:
        doing = f"{status.current_job}: {status.preparing}"
    if long_work is not None:
        doing = f"{doing}: {_long_work(long_work, [status])}"
    return doing


def progress_line(reports: Sequence[RankReport], *, elapsed_s: float) -> str:
    """Return the state of the run in one line; see `progress_table`."""
    share, counts, times, preparing = _texts(reports, elapsed_s)
    line = ", ".join([share, *counts, *times, *preparing])
    lost = [str(report.rank) for report in reports if report.fate in (RankFate.DEAD, RankFate.FAILED)]
    return f"{line}, lost ranks: {', '.join(lost)}" if lost else line


def fraction_done(reports: Sequence[RankReport]) -> float:
    """Return the fraction of work done, 0 to 1: by episodes if their number is known, else by jobs."""
    statuses = [report.status for report in reports if report.status is not None]
    if (episodes_total := sum(status.episodes_total for status in statuses)) > 0:
        return min(sum(status.episodes_done for status in statuses) / episodes_total, 1.0)
    jobs_total = sum(status.jobs_total for status in statuses)
    return sum(status.jobs_done for status in statuses) / jobs_total if jobs_total > 0 else 0.0


def time_left_s(reports: Sequence[RankReport], elapsed_s: float) -> float | None:
    """Return the estimated time left [s], None as long as it is unknown. `elapsed_s`: since the run began [s]."""
    # Jobs differ in speed by a factor of a hundred. So the current job of a rank counts at its own pace, known from its
    # first finished episode on, and later jobs count at the pace of the run so far.
    fraction = fraction_done(reports)
    if not 0.0 < fraction < 1.0:
        return None
    at_this_pace_s = elapsed_s * (1.0 - fraction) / fraction
    working = [report.status for report in reports if report.fate is RankFate.WORKING and report.status is not None]
    left_s = []
    for status in working:
        planned, done = status.job_episodes_total, status.job_episodes_done
        if status.preparing is not None:
            return None
        if status.current_job is None or planned == 0:
            left_s.append(at_this_pace_s)
            continue
        if done == 0:
            return None
        of_job = max(planned - done, 0)
        of_others = max(status.episodes_total - status.episodes_done - of_job, 0)
        own_s = of_job * status.job_stepping_s / done
        left_s.append(own_s + of_others * elapsed_s / max(status.episodes_done, 1))
    return max(left_s, default=None)


def clock_text(duration_s: float) -> str:
    """Return a duration [s] as minutes and seconds, ``14:03``, with hours if there are any."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _texts(reports: Sequence[RankReport], elapsed_s: float) -> tuple[str, list[str], list[str], list[str]]:
    """Return the fraction done, the counts, the times, and the preparation of a rank that makes no steps yet."""
    # As long as a rank has a job, the fraction is below 100 %, even if all episodes are done.
    working = [report.status for report in reports if report.status and report.fate is RankFate.WORKING]
    has_job = any(status.current_job or status.long_work for status in working)
    share = f"{min(fraction_done(reports), 0.99 if has_job else 1.0):.0%}"
    preparing = [f"{plain_text(each.current_job)}: {each.preparing}" for each in working if each.preparing][:1]
    times = []
    for duration_s, word in ((elapsed_s, "elapsed"), (time_left_s(reports, elapsed_s), "left")):
        if duration_s is not None:
            times.append(f"{clock_text(duration_s)} {word}")

    statuses = [report.status for report in reports if report.status is not None]
    jobs_total = sum(status.jobs_total for status in statuses)
    # The success of each job under way; a mean over jobs would say nothing.
    of_jobs: defaultdict[str, list[RankStatus]] = defaultdict(list)
    for status in working:
        if status.current_job and status.job_scored:
            of_jobs[status.current_job].append(status)
    rates = [
        f"of {plain_text(shortened(job, _MAX_NAME))} {sum(each.job_successes for each in own) / scored:.0%}"
        for job, own in of_jobs.items()
        for scored in [sum(each.job_scored for each in own)]
    ]
    more = [f"and {len(rates) - _MAX_RATES} more"] if len(rates) > _MAX_RATES else []

    # The rate of steps, unless all ranks are busy otherwise, and the other long work of ranks.
    alive = [report.status for report in reports if report.status is not None and report.alive]
    stepping = [status for status in alive if status.long_work is None and not status.state.is_final]
    busy: defaultdict[str, list[RankStatus]] = defaultdict(list)
    for status in alive:
        if status.long_work is not None:
            busy[status.long_work].append(status)
    doings = [_long_work(doing, busy_ranks) for doing, busy_ranks in busy.items()]
    if stepping or not busy:
        doings.insert(0, f"{sum(status.steps_per_s for status in stepping or alive):,.0f} steps/s")
    counts = [
        # If ranks share jobs, jobs_total is 0: each rank has a part of one, and their sum has no meaning.
        *([f"jobs {sum(status.jobs_done for status in statuses)}/{jobs_total}"] if jobs_total else []),
        f"episodes {sum(status.episodes_done for status in statuses)}",
        *([f"success {', '.join([*rates[:_MAX_RATES], *more])}"] if rates else []),
        *doings,
    ]
    return share, counts, times, preparing


def _long_work(doing: str, statuses: Sequence[RankStatus]) -> str:
    done, total = (sum(getattr(each, f"long_work_{name}") for each in statuses) for name in ("done", "total"))
    return f"{doing} {done:,} of {total:,} episodes"
