"""Drives a run on a cluster: plans it, keeps its ranks alive, and makes the tables at the end."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.cluster.nodes import NodeNeeds, RunOrders, needs_of
from isaaclab_arena.evaluation.cluster.supervisor import RankSupervisor
from isaaclab_arena.evaluation.heartbeat import RankState, RankWatch
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.evaluation.run import Host, Played, run
from isaaclab_arena.evaluation.start_up import StartedRun, start_run_alone
from isaaclab_arena.storage.run_plan import Attempt
from isaaclab_arena.tracking.trackers import check_trackers

if TYPE_CHECKING:
    from isaaclab_arena.evaluation.cluster.ray_engine import RayEngine

_LOG = logging.getLogger(__name__)


def execute_on_cluster(
    request: RunRequest, options: ClusterOptions, *, connect: "Callable[[ClusterOptions], RayEngine] | None" = None
) -> int:
    """Run jobs on the ranks of a cluster, merge and show the results, and return the exit code."""
    # `connect` None: Ray. `ConfigError`: contradictory options, no cluster, or a node that lacks something.
    # `DistributedError`: no rank can start.
    check_trackers(request.options.tracking, key="tracking")
    way_out = (
        "ranks of a cluster share no policy server; leave policy_server out, and each rank has the network itself, or "
        "run this job under torchrun, without --cluster"
    )
    problems = [
        Problem(
            f"'{server.shared}': {way_out}", file=request.source_file, job=job.config.name, key="policy_server.shared"
        )
        for job in request.jobs
        if (server := job.config.policy_server) is not None
    ]
    if problems:
        raise ConfigError(problems)
    if connect is None:
        from isaaclab_arena.evaluation.cluster.ray_engine import RayEngine  # noqa: PLC0415  an extra, and slow to load

        connect = RayEngine
    # Connect before the run has a directory, so that a missing cluster leaves none.
    with connect(options) as cluster:
        needs = needs_of(request, options, working_directory=cluster.working_directory())
        cluster.check_nodes(needs)
        return run(request, ClusterHost(cluster, options, needs)).exit_code


class ClusterHost(Host):
    """Has a run's jobs played by the ranks of a cluster, and plays none in this process."""

    is_whole_program = writes_report = ranks_are_elsewhere = True

    def __init__(self, cluster: "RayEngine", options: ClusterOptions, needs: NodeNeeds) -> None:
        self.context = DistributedContext(world_size=options.num_ranks, local_world_size=options.num_ranks)
        self._cluster, self._options, self._needs = cluster, options, needs

    def begin(self, request: RunRequest) -> StartedRun:
        """Begin the run alone: the ranks come later, each with this plan."""
        device = self._options.device or ("cuda" if self._options.gpus_per_rank else "cpu")
        return start_run_alone(request, self.context, [device] * self._options.num_ranks)

    @contextmanager
    def ready(
        self, request: RunRequest, started: StartedRun, attempt: Attempt, watch: RankWatch, interruption: Interruption
    ) -> Iterator[tuple[Callable[[], RankState], Callable[[RankState], Played]]]:
        """Yield the function that runs the ranks to their end; there is no other rank to wait for."""
        del request, watch
        directory, options = started.output_directory, self._options
        if self._needs.working_directory is None and directory.is_relative_to(Path.cwd()):
            _LOG.warning(
                "%s is in Ray's copy of the working directory, which Ray removes some time after the run; name "
                "another one by --output_dir, or copy this one",
                directory,
            )
        orders = RunOrders(
            run=f"{directory.name}-{attempt.run_id[:6]}",
            needs=self._needs,
            config_hash=started.plan.config_hash,
            output_directory=str(directory),
            attempt=attempt,
            num_ranks=options.num_ranks,
            node_directory=None if options.node_dir is None else str(Path(options.node_dir).absolute()),
        )
        supervisor = RankSupervisor(
            self._cluster,
            orders,
            # A rank without a status may be waiting for resources.
            RankWatch(
                directory, world_size=attempt.world_size, run_id=attempt.run_id, missing_after_s=float("inf")
            ).look,
            interruption,
            fail_fast=options.fail_fast,
        )

        def play() -> RankState:
            self._cluster.start_claim_server(orders)
            supervisor.work(options.start_timeout_s)
            return RankState.FINISHED if supervisor.failure is None else RankState.FAILED

        yield play, lambda state: Played(merges=True, failed=state is RankState.FAILED, all_ended=True)
