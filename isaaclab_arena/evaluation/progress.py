"""The progress of a run: one live display on rank 0 for all ranks, log lines, and its page written again and again."""

import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.heartbeat import RankFate, RankReport, RankStatus, StatusPublisher
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.logs import plain_text

_LOG = logging.getLogger(__name__)
_DISPLAY_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 10.0
_FATE_STYLES = {RankFate.WORKING: "", RankFate.FINISHED: "green", RankFate.INTERRUPTED: "yellow"}


class ProgressObserver(Observer):
    """Counts a job's steps and episodes into the status of its rank; it never waits for the disk."""

    sees_pictures = False

    def __init__(self, publisher: StatusPublisher) -> None:
        self._publisher = publisher

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add one step for each running env slot."""
        del environment
        self._publisher.count_env_steps(transition.num_running)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Count the episode, its success and its error."""
        del environment
        self._publisher.count_episode(success=record.success, error=record.outcome is Outcome.ERROR)


class ProgressDisplay:
    """Context manager that shows the progress of all ranks: a live table on a terminal, else a line at intervals."""

    def __init__(
        self,
        look: Callable[[], Sequence[RankReport]],
        *,
        console: Console | None = None,
        line_interval_s: float = _LINE_INTERVAL_S,
    ) -> None:
        # `look` is called in a thread of its own, so that the rank's loop never waits for it.
        self._look = look
        self._console = console or Console(stderr=True)
        self._line_interval_s = line_interval_s  # between two lines without a terminal [s]
        self._started_at = time.monotonic()
        self._closing = threading.Event()
        show = self._show_table if self._console.is_interactive else self._log_lines
        self._thread = threading.Thread(target=show, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._started_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # The final state is shown before the thread ends; a live table is removed.
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show_table(self) -> None:
        # Transient: the table of results takes its place.
        with Live(console=self._console, auto_refresh=False, transient=True) as live, ExitStack() as stack:
            # Send console log lines through the live display, which they would otherwise tear.
            for handler in logging.getLogger("isaaclab_arena").handlers:
                if type(handler) is logging.StreamHandler:
                    stack.callback(handler.setStream, handler.stream)
                    handler.setStream(sys.stderr)
            for reports, elapsed_s in self._looks(_DISPLAY_INTERVAL_S):
                live.update(progress_table(reports, elapsed_s=elapsed_s), refresh=True)

    def _log_lines(self) -> None:
        for reports, elapsed_s in self._looks(self._line_interval_s):
            _LOG.info("%s", progress_line(reports, elapsed_s=elapsed_s))

    def _looks(self, interval_s: float) -> Iterator[tuple[Sequence[RankReport], float]]:
        """Yield the ranks' reports and the time since the start [s] again and again, the last time at the end."""
        closing = False
        while not closing:
            closing = self._closing.wait(interval_s)
            yield self._look(), time.monotonic() - self._started_at


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
            waiting = "has not started yet" if report.fate is RankFate.WORKING else "has died"
            table.add_row(*map(Text, (str(report.rank), "-", waiting, *"----")), style=style)
            continue

        # The current job with its start-up phase, and the long work beside it or instead of it.
        long_work = status.long_work if report.alive else None
        doing = status.current_job or (status.long_work_job if long_work else None) or str(status.state)
        if status.preparing is not None and status.current_job is not None:
            doing = f"{status.current_job}: {status.preparing}"
        if long_work is not None:
            beside = f", {status.long_work_job}" if status.makes_steps else ""
            doing = f"{doing}{beside}: {_long_work(long_work, [status])}"
        if report.fate is not RankFate.WORKING:
            doing = str(report.fate) if status.current_job is None else f"{report.fate} in {status.current_job}"

        jobs, episodes = (
            f"{done}/{total}" if total else str(done)
            for done, total in ((status.jobs_done, status.jobs_total), (status.episodes_done, status.episodes_total))
        )
        cells = (
            str(report.rank),
            jobs,
            doing,
            episodes,
            f"{status.successes / status.scored:.0%}" if status.scored else "-",
            str(status.errors),
            f"{status.steps_per_s:,.0f}" if report.alive and status.makes_steps else "-",
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


def progress_line(reports: Sequence[RankReport], *, elapsed_s: float) -> str:
    """Return the state of the run in one line; see `progress_table`."""
    share, counts, times, preparing = _texts(reports, elapsed_s)
    line = ", ".join([share, *counts, *times, *preparing])
    lost = [str(report.rank) for report in reports if report.fate in (RankFate.DEAD, RankFate.FAILED)]
    return f"{line}, lost ranks: {', '.join(lost)}" if lost else line


def fraction_done(reports: Sequence[RankReport]) -> float:
    """Return the fraction of work done, 0 to 1: by episodes if their number is known, else by jobs."""
    statuses = _statuses(reports)
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


def _texts(reports: Sequence[RankReport], elapsed_s: float) -> tuple[str, list[str], list[str], list[str]]:
    """Return the fraction done, the counts, the times, and the preparation of a rank that makes no steps yet."""
    # As long as a rank has a job, the fraction is below 100 %, even if all episodes are done.
    working = [report.status for report in reports if report.status and report.fate is RankFate.WORKING]
    has_job = any(status.current_job or status.long_work for status in working)
    share = f"{min(fraction_done(reports), 0.99 if has_job else 1.0):.0%}"
    preparing = [f"{plain_text(each.current_job)}: {each.preparing}" for each in working if each.preparing][:1]
    times = []
    for duration_s, word in ((elapsed_s, "gone"), (time_left_s(reports, elapsed_s), "left")):
        if duration_s is not None:
            minutes, seconds = divmod(round(duration_s), 60)
            hours, minutes = divmod(minutes, 60)
            clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
            times.append(f"{clock} {word}")

    statuses = _statuses(reports)
    jobs_total = sum(status.jobs_total for status in statuses)
    scored = sum(status.scored for status in statuses)
    success = f"{sum(status.successes for status in statuses) / scored:.0%}" if scored else "-"

    # The rate of steps, unless all ranks are busy otherwise, and the other long work of ranks.
    alive = _statuses([report for report in reports if report.alive])
    stepping = [status for status in alive if status.makes_steps and not status.state.is_final]
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
        f"success {success}",
        *doings,
    ]
    return share, counts, times, preparing


def _long_work(doing: str, statuses: Sequence[RankStatus]) -> str:
    done = sum(status.long_work_done for status in statuses)
    total = sum(status.long_work_total for status in statuses)
    return f"{doing} {done:,} of {total:,} episodes"


def _statuses(reports: Sequence[RankReport]) -> list[RankStatus]:
    return [report.status for report in reports if report.status is not None]


_PAGE_INTERVAL_S = 30.0
_PAGE_SHARE = 0.01


class LiveReport:
    """Context manager that writes a page every 30 s, or less often to stay below 1 % of the time."""

    def __init__(
        self,
        write: Callable[[], object],
        *,
        cost_clock: Callable[[], float] = time.thread_time,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        # A page that cannot be written is skipped, and the next one is tried. `pause` waits for some seconds and
        # returns True to stop; by default it waits for the end of the context.
        self._write = write
        self._cost_clock = cost_clock
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait
        self._thread = threading.Thread(target=self.keep_writing, name="report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()

    def keep_writing(self) -> None:
        """Write until the stop; the pause after a page is at least a hundred times its CPU time."""
        pause_s = _PAGE_INTERVAL_S
        while not self._pause(pause_s):
            began = self._cost_clock()
            try:
                self._write()
            except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
                _LOG.debug("no page of the run so far: %s", error)
            pause_s = max(_PAGE_INTERVAL_S, (self._cost_clock() - began) / _PAGE_SHARE)
