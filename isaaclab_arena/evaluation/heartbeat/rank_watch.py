"""Judges from the status files of all ranks which of them work, have ended or are dead, and waits for them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from isaaclab_arena.distributed.process import machine_identity, process_is_running
from isaaclab_arena.evaluation.heartbeat.rank_status import RankState, RankStatus, read_rank_status


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
