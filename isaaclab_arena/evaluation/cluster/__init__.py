"""Run the ranks of an evaluation on the nodes of a Ray cluster."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import DistributedError, ranks_of_one
from isaaclab_arena.errors import ArenaError, DiskUnusableError, Problem, first_line, refuse
from isaaclab_arena.evaluation.cluster import claim_server
from isaaclab_arena.evaluation.cluster.claim_server import Life, RankDiedError, RefusedError, RunOrders
from isaaclab_arena.evaluation.heartbeat import RankReport, RankState, status_path
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.evaluation.run import ActiveRun, Played, RunHost, run
from isaaclab_arena.tracking.trackers import check_trackers

if TYPE_CHECKING:
    from isaaclab_arena.evaluation.cluster.ray_engine import RayEngine

_LOG = logging.getLogger(__name__)


def execute_on_cluster(request: RunRequest, options: ClusterOptions) -> int:
    """Run jobs on the ranks of a cluster, merge and show the results, and return the exit code."""
    # `ConfigError`: contradictory options, no cluster, or a node that lacks something. `DistributedError`: no rank can
    # start.
    check_trackers(request.options.tracking, key="tracking")
    way_out = (
        "ranks of a cluster share no policy server; leave policy_server out, and each rank has the network itself, or "
        "run this job under torchrun, without --cluster"
    )
    file, key = request.source_file, "policy_server.shared"
    shared = [(job.config.name, job.config.policy_server) for job in request.jobs]
    refuse([Problem(f"'{server.shared}': {way_out}", file=file, job=job, key=key) for job, server in shared if server])
    from isaaclab_arena.evaluation.cluster.ray_engine import connected  # noqa: PLC0415  an extra, and slow to load

    # Connect before the run has a directory, so that a missing cluster leaves none.
    with connected(options) as cluster:
        needs = claim_server.needs_of(request, options, working_directory=cluster.working_directory)
        cluster.check_nodes(needs)
        num_ranks, device = options.num_ranks, options.device or ("cuda" if options.gpus_per_rank else "cpu")
        host = ClusterHost(
            ranks_of_one(DistributedContext(world_size=num_ranks, local_world_size=num_ranks)),
            devices_to_come=[device] * num_ranks,
            is_whole_program=True,
            writes_report=True,
            cluster=cluster,
            options=options,
            needs=needs,
        )
        return run(request, host).exit_code


@dataclass(kw_only=True)
class ClusterHost(RunHost):
    """Has a run's jobs played by the ranks of a cluster, and plays none in this process."""

    cluster: "RayEngine"
    options: ClusterOptions
    needs: claim_server.NodeNeeds

    def play(self, active: ActiveRun) -> Played:
        """Run the ranks to their end; there is no other rank to wait for."""
        directory, options = active.output_directory, self.options
        if self.needs.working_directory is None and directory.is_relative_to(Path.cwd()):
            _LOG.warning(
                "%s is in Ray's copy of the working directory, which Ray removes some time after the run; name "
                "another one by --output_dir, or copy this one",
                directory,
            )
        orders = RunOrders(
            run=f"{directory.name}-{active.attempt.run_id[:6]}",
            needs=self.needs,
            config_hash=active.plan.config_hash,
            output_directory=str(directory),
            attempt=active.attempt,
            node_directory=None if options.node_dir is None else str(Path(options.node_dir).absolute()),
        )
        supervisor = RankSupervisor(
            self.cluster, orders, active.watch.look, active.interruption, fail_fast=options.fail_fast
        )
        with active.progress:
            self.cluster.start_claim_server(orders)
            supervisor.work(options.start_timeout_s)
        return Played(merges=True, failed=supervisor.failure is not None, all_ended=True)


# Keep the ranks of a run alive: start them, restart them if they die, and end them with the run.

_INTERVAL_S = 0.5
_SILENT_S = 30.0
_BLIND_AFTER_S = 5.0
"""Time between two looks after which this process counts as suspended in between [s]."""
_GRACE_S = 30.0
_SAY_EVERY_S = 30.0
_RESTARTS_PER_RANK = 3
"""Restarts for each rank of the run. A restart after a life that finished something costs none."""


@dataclass(eq=False)
class RankSupervisor:
    """The ranks of a run. As under torchrun, their status files say which are at work, and which are silent."""

    cluster: "RayEngine"
    orders: RunOrders
    look: Callable[[], Sequence[RankReport]]
    interruption: Interruption  # request of the user to stop
    _: KW_ONLY
    fail_fast: bool = False  # stop the run after the first failed job
    clock: Callable[[], float] = time.monotonic
    failure: Exception | None = None  # first error of a rank, which ended the run; None without
    _lives: dict[Life, float] = field(default_factory=dict, init=False)  # that have not ended, and their starts [s]
    _restarts: int = field(default=0, init=False)  # that count
    _stop_by: float | None = field(default=None, init=False)
    _said_waiting_at: float | None = field(default=None, init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)  # by node, which is avoided: the reason

    def work(self, start_timeout_s: float) -> None:
        """Start all ranks; return if no work or no rank is left. `DistributedError`: no rank or claim server starts."""
        for rank in range(self.orders.attempt.world_size):
            self._start(Life(rank=rank))
        # `start_timeout_s` [s] limits the wait for the first rank only.
        looked_s = watching_since_s = self.clock()
        start_by = looked_s + start_timeout_s
        while True:
            for life, outcome in self.cluster.wait(_INTERVAL_S):
                self._take_note(life, outcome)
            num_unfinished_jobs: int = self.cluster.ask([("num_unfinished_jobs", (), None)])
            heard = {each.rank: each.silent_s for each in self.look() if each.status is not None}
            start_by = float("inf") if heard else start_by

            # Ranks without a message for too long are killed and treated as dead.
            at = self.clock()
            if at - looked_s > _BLIND_AFTER_S:
                watching_since_s = at
            looked_s = at
            for life in [each for each in self._lives if each.rank in heard]:
                silent_s = min(heard[life.rank], at - watching_since_s)
                if silent_s > _SILENT_S:
                    self.cluster.kill(life)
                    self._take_note(life, RankDiedError(f"nothing was heard of it for {silent_s:.0f} s"))
                    heard.pop(life.rank)

            # The run is over if no rank or no work is left, or if the ranks take too long to stop.
            if self.interruption.signal_number is not None:
                self._stop(self.interruption.signal_number)
            is_late = self._stop_by is not None and at > self._stop_by
            unheard = {life for life in self._lives if life.rank not in heard}
            nothing_left = num_unfinished_jobs == 0 or self._stop_by is not None
            if is_late or not self._lives or (nothing_left and len(unheard) == len(self._lives)):
                break
            self._check_waiting(unheard, start_by, start_timeout_s)
        for life in self._lives:
            self.cluster.kill(life)

    def _check_waiting(self, unheard: set[Life], start_by: float, start_timeout_s: float) -> None:
        """Log the ranks that wait or start up now and then; `DistributedError` if the first one does not begin."""
        # `start_by` is the moment by which the first rank must have begun, infinite if it has.
        if start_by < float("inf") and self._refused and not self.cluster.has_nodes(self._refused):
            raise DistributedError("; ".join(self._refused.values()))
        at, needs = self.clock(), self.orders.needs
        is_over = at > start_by
        late = {life for life in unheard if at - self._lives[life] > _SAY_EVERY_S}
        is_time = self._said_waiting_at is None or at - self._said_waiting_at > _SAY_EVERY_S
        if not (is_over or (late and is_time)):
            return
        waiting, gpus = set(self.cluster.waiting()), f" and {needs.gpus:g} GPU" if needs.gpus else ""
        asked_and_had = f"each asks for {needs.cpus:g} CPU{gpus}, and the cluster has {self.cluster.resources()}"
        if is_over:
            num_processes = len(self._lives.keys() - waiting)
            how = f"could start within {start_timeout_s:g} s: {asked_and_had}; ask for less, add nodes"
            if num_processes:
                how = f"has begun within {start_timeout_s:g} s, though {num_processes} have a process: look into Ray's "
                how += "logs of them"
            raise DistributedError(f"no rank {how}, or give a longer --start_timeout_s")
        self._said_waiting_at, num_waiting, num_ranks = at, len(late & waiting), self.orders.attempt.world_size
        if num_waiting:
            _LOG.warning("%d of %d ranks wait for resources: %s", num_waiting, num_ranks, asked_and_had)
        if num_waiting < len(late):
            _LOG.info("%d of %d ranks are starting up", len(late) - num_waiting, num_ranks)

    def _take_note(self, life: Life, outcome: str | Exception) -> None:
        """Note the final state of a rank that has ended, or its error."""
        # Only if the process died its running episodes are suspected.
        rank, is_dead = life.rank, isinstance(outcome, RankDiedError)
        reason = str(outcome) if is_dead else ""
        num_pieces, was_fruitful, lives_explained = self.cluster.ask([("end", (life, reason), None)])
        del self._lives[life]
        costs = int(not was_fruitful)
        # After a death, a refusal or a lost claim server the rank gets another life. Any other error ends the run.
        match outcome:
            case RankDiedError() | DistributedError():
                how, told = "died" if is_dead else "ended", "rank %d has %s: %s; %d pieces are open to others again"
                _LOG.error(told, rank, how, outcome, num_pieces)
                self._restarts = max(0, self._restarts - lives_explained)
            case RefusedError(host=host, node=node):
                if node not in self._refused:
                    self._refused[node] = f"node {host} has no ranks of this run: it {outcome}"
                    _LOG.error("%s", self._refused[node])
                costs = 0
            case Exception() if self.failure is not None:
                _LOG.debug("rank %d has failed too: %s", rank, outcome)
                return
            case Exception():
                # The first error ends the run, as with a launcher.
                self.failure = outcome
                is_known, kind = isinstance(outcome, ArenaError), type(outcome).__name__
                what = str(outcome) if is_known else f"{kind}: {first_line(outcome)}"
                mend = ": make room, then go on with --resume" if isinstance(outcome, DiskUnusableError) else ""
                _LOG.error("rank %d has failed first: %s; the run stops%s", rank, what, mend)
                self._stop(signal.SIGTERM)
                return
            case _:
                if outcome == RankState.FAILED and self.fail_fast:
                    _LOG.error("a job failed on rank %d, and --fail_fast ends the run", rank)
                    self._stop(signal.SIGTERM)
                return
        if self._stop_by is not None:
            return
        if self._restarts + costs > _RESTARTS_PER_RANK * self.orders.attempt.world_size:
            _LOG.error("rank %d does not begin anew: ranks of this run have died too often", rank)
            return
        self._restarts += costs
        status_path(Path(self.orders.output_directory), rank).unlink(missing_ok=True)
        self._start(Life(rank=rank, number=life.number + 1))

    def _start(self, life: Life) -> None:
        self.cluster.start_rank(life, avoid=self._refused)
        self._lives[life] = self.clock()

    def _stop(self, signal_number: int) -> None:
        if self._stop_by is None:
            self._stop_by = self.clock() + _GRACE_S
            self.cluster.ask([("stop", (signal_number,), None)])
