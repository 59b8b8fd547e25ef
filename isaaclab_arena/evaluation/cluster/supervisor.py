"""Keep the ranks of a run on a cluster alive: start them, restart them if they die, and end them with the run."""

import logging
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ArenaError, DiskUnusableError, first_line
from isaaclab_arena.evaluation.cluster.nodes import Life, LifeEnd, RankDiedError, RefusedError, RunOrders
from isaaclab_arena.evaluation.heartbeat import RankReport, RankState, status_path
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.storage.json_values import adapter

if TYPE_CHECKING:
    from isaaclab_arena.evaluation.cluster.ray_engine import RayEngine

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.5
_SILENT_S = 30.0
_BLIND_AFTER_S = 5.0
"""Time between two looks after which this process counts as suspended in between [s]."""
_GRACE_S = 30.0
_SAY_EVERY_S = 30.0
_RESTARTS_PER_RANK = 3
"""Restarts for each rank of the run. A restart after a life that finished something costs none."""


class RankSupervisor:
    """The ranks of a run. As under torchrun, their status files say which are at work, and which are silent."""

    def __init__(
        self,
        cluster: "RayEngine",
        orders: RunOrders,
        look: Callable[[], Sequence[RankReport]],
        interruption: Interruption,  # request of the user to stop
        *,
        fail_fast: bool = False,  # stop the run after the first failed job
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: Exception | None = None  # first error of a rank, which ended the run; None without
        self._cluster = cluster
        self._orders = orders
        self._look = look
        self._interruption = interruption
        self._fail_fast = fail_fast
        self._clock = clock
        self._lives = {rank: Life(rank=rank) for rank in range(orders.num_ranks)}
        self._max_restarts = self._restarts_left = _RESTARTS_PER_RANK * orders.num_ranks
        self._stop_by: float | None = None
        self._started_at: dict[int, float] = {}
        self._said_waiting_at: float | None = None
        self._refused: dict[str, str] = {}

    def work(self, start_timeout_s: float) -> None:
        """Start all ranks; return if no work or no rank is left. `DistributedError`: no rank or claim server starts."""
        for life in self._lives.values():
            self._start(life)
        # `start_timeout_s` [s] limits the wait for the first rank only.
        began_s = looked_s = watching_since_s = self._clock()
        has_begun = False
        while True:
            for life, outcome in self._cluster.wait(_INTERVAL_S):
                self._take_note(life, outcome)
            num_unfinished_jobs: int = self._cluster.ask([("num_unfinished_jobs", (), None)])
            heard = {each.rank: each.silent_s for each in self._look() if each.status is not None}
            has_begun = has_begun or bool(heard)

            # Ranks without a message for too long are killed and treated as dead.
            at = self._clock()
            if at - looked_s > _BLIND_AFTER_S:
                watching_since_s = at
            looked_s = at
            for rank in heard.keys() & self._lives.keys():
                silent_s, life = min(heard[rank], at - watching_since_s), self._lives[rank]
                if silent_s > _SILENT_S:
                    self._cluster.kill(life)
                    self._take_note(life, RankDiedError(f"nothing was heard of it for {silent_s:.0f} s"))
                    heard.pop(rank)

            # The run is over if no rank or no work is left, or if the ranks take too long to stop.
            if self._interruption.signal_number is not None:
                self._stop(self._interruption.signal_number)
            is_late = self._stop_by is not None and at > self._stop_by
            nothing_left = num_unfinished_jobs == 0 or self._stop_by is not None
            if is_late or not self._lives or (nothing_left and not heard.keys() & self._lives.keys()):
                break
            self._say_who_waits(heard)
            if not has_begun and self._refused and not self._cluster.has_nodes():
                raise DistributedError("; ".join(self._refused.values()))
            if not has_begun and at - began_s > start_timeout_s:
                self._give_up(start_timeout_s)
        for life in self._lives.values():
            self._cluster.kill(life)

    def _take_note(self, life: Life, outcome: str | Exception) -> None:
        """Note the final state of a rank that has ended, or its error."""
        rank = life.rank
        if self._lives.get(rank) != life:
            return
        # Only if the process died its running episodes are suspected.
        reason = str(outcome) if isinstance(outcome, RankDiedError) else ""
        end = adapter(LifeEnd).validate_python(self._cluster.ask([("end", (life, reason), None)]))
        del self._lives[rank]
        costs, open_again = int(not end.was_fruitful), f"{end.pieces} pieces are open to others again"
        # After a death, a refusal or a lost claim server the rank gets another life. Any other error ends the run.
        match outcome:
            case RankDiedError():
                _LOG.error("rank %d has died: %s; %s", rank, reason, open_again)
                self._restarts_left = min(self._restarts_left + end.lives_explained, self._max_restarts)
                self._begin_anew(life, costs=costs)
            case RefusedError(host=host, node=node):
                if node not in self._refused:
                    self._refused[node] = f"node {host} has no ranks of this run: it {outcome}"
                    _LOG.error("%s", self._refused[node])
                    self._cluster.avoid(node)
                self._begin_anew(life, costs=0)
            case DistributedError():
                _LOG.error("rank %d has ended: %s; %s", rank, outcome, open_again)
                self._begin_anew(life, costs=costs)
            case Exception() if self.failure is not None:
                _LOG.debug("rank %d has failed too: %s", rank, outcome)
            case Exception():
                # The first error ends the run, as with a launcher.
                self.failure = outcome
                is_known = isinstance(outcome, ArenaError)
                what = str(outcome) if is_known else f"{type(outcome).__name__}: {first_line(outcome)}"
                mend = ": make room, then go on with --resume" if isinstance(outcome, DiskUnusableError) else ""
                _LOG.error("rank %d has failed first: %s; the run stops%s", rank, what, mend)
                self._stop(signal.SIGTERM)
            case RankState.FAILED if self._fail_fast:
                _LOG.error("a job failed on rank %d, and --fail_fast ends the run", rank)
                self._stop(signal.SIGTERM)

    def _begin_anew(self, life: Life, *, costs: int) -> None:
        if self._stop_by is not None:
            return
        if self._restarts_left < costs:
            _LOG.error("rank %d does not begin anew: ranks of this run have died too often", life.rank)
            return
        self._restarts_left -= costs
        status_path(Path(self._orders.output_directory), life.rank).unlink(missing_ok=True)
        self._lives[life.rank] = following = Life(rank=life.rank, number=life.number + 1)
        self._start(following)

    def _start(self, life: Life) -> None:
        self._cluster.start_rank(life)
        self._started_at[life.rank] = self._clock()

    def _stop(self, signal_number: int) -> None:
        if self._stop_by is None:
            self._stop_by = self._clock() + _GRACE_S
            self._cluster.ask([("stop", (signal_number,), None)])

    def _say_who_waits(self, heard: Collection[int]) -> None:
        """Log the ranks without resources, and those that are starting up."""
        at, of_all = self._clock(), self._orders.num_ranks
        unheard = {
            life
            for rank, life in self._lives.items()
            if rank not in heard and at - self._started_at[rank] > _SAY_EVERY_S
        }
        if not unheard or (self._said_waiting_at is not None and at - self._said_waiting_at <= _SAY_EVERY_S):
            return
        self._said_waiting_at = at
        num_waiting = len(unheard & set(self._cluster.waiting()))
        if num_waiting:
            _LOG.warning("%d of %d ranks wait for resources: %s", num_waiting, of_all, self._asked_and_had())
        if num_waiting < len(unheard):
            _LOG.info("%d of %d ranks are starting up", len(unheard) - num_waiting, of_all)

    def _give_up(self, start_timeout_s: float) -> None:
        num_processes = len(self._lives) - len(set(self._lives.values()) & set(self._cluster.waiting()))
        if num_processes:
            raise DistributedError(
                f"no rank has begun within {start_timeout_s:g} s, though {num_processes} have a process: look into "
                "Ray's logs of them, or give a longer --start_timeout_s"
            )
        raise DistributedError(
            f"no rank could start within {start_timeout_s:g} s: {self._asked_and_had()}; ask for less, add nodes, "
            "or give a longer --start_timeout_s"
        )

    def _asked_and_had(self) -> str:
        gpus = f" and {self._orders.needs.gpus:g} GPU" if self._orders.needs.gpus else ""
        return f"each asks for {self._orders.needs.cpus:g} CPU{gpus}, and the cluster has {self._cluster.resources()}"
