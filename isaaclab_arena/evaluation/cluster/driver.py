"""Drives a run on a cluster: plans it, keeps its ranks alive, and makes the tables at the end."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.cluster.supervisor import ClusterOptions, Engine, NodeNeeds, RankSupervisor, RunOrders
from isaaclab_arena.evaluation.contents import contents_of_jobs
from isaaclab_arena.evaluation.heartbeat import RankWatch
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.evaluation.run import Host, Played, run
from isaaclab_arena.evaluation.start_up import StartedRun, named_contents, start_run_alone
from isaaclab_arena.storage.run_plan import Attempt
from isaaclab_arena.tracking.trackers import check_trackers

_LOG = logging.getLogger(__name__)


class Cluster(Engine, AbstractContextManager["Cluster"], Protocol):
    """A cluster that runs processes; a context manager, which ends the remaining ones."""

    def working_directory(self) -> str | None:
        """Return the base of the ranks' relative paths; None if the cluster copies the directory to each node."""
        ...

    def check_nodes(self, needs: NodeNeeds) -> None:
        """Raise `ConfigError` for nodes that cannot take part, before any rank starts."""
        ...


def execute_on_cluster(
    request: RunRequest, options: ClusterOptions, *, connect: Callable[[ClusterOptions], Cluster] | None = None
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
    # Connect before the run has a directory, so that a missing cluster leaves none.
    with (connect or _connect_to_ray)(options) as engine:
        needs = needs_of(request, options, working_directory=engine.working_directory())
        engine.check_nodes(needs)
        return run(request, ClusterHost(engine, options, needs)).exit_code


class ClusterHost(Host):
    """Has a run's jobs played by the ranks of a cluster, and plays none in this process."""

    is_whole_program = writes_report = ranks_are_elsewhere = True

    def __init__(self, engine: Cluster, options: ClusterOptions, needs: NodeNeeds) -> None:
        super().__init__(DistributedContext(world_size=options.num_ranks, local_world_size=options.num_ranks))
        self._engine, self._options, self._needs = engine, options, needs

    def begin(self, request: RunRequest) -> StartedRun:
        """Begin the run alone: the ranks come later, each with this plan."""
        device = self._options.device or ("cuda" if self._options.gpus_per_rank else "cpu")
        return start_run_alone(request, self.context, [device] * self._options.num_ranks)

    def watch(self, directory: Path, attempt: Attempt) -> RankWatch:
        """Return a watch that calls no rank dead: one without a status may be waiting for resources."""
        never = float("inf")
        return RankWatch(directory, world_size=attempt.world_size, run_id=attempt.run_id, missing_after_s=never)

    @contextmanager
    def ready(
        self, request: RunRequest, started: StartedRun, attempt: Attempt, watch: RankWatch, interruption: Interruption
    ) -> Iterator[Callable[[], Played]]:
        """Yield the function that runs the ranks to their end."""
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
        supervisor = RankSupervisor(self._engine, orders, interruption, fail_fast=options.fail_fast)

        def play() -> Played:
            supervisor.work(options.start_timeout_s)
            return Played(merges=True, failed=supervisor.failure is not None, all_ended=True)

        yield play


def _connect_to_ray(options: ClusterOptions) -> Cluster:
    from isaaclab_arena.evaluation.cluster.ray_engine import RayEngine  # noqa: PLC0415  Ray is an extra, and slow to load

    return RayEngine(options)


def needs_of(request: RunRequest, options: ClusterOptions, *, working_directory: str | None) -> NodeNeeds:
    """Return the requirements of a node that runs ranks, as this node meets them."""
    program, *arguments = request.command_line
    return NodeNeeds(
        program=program,
        arguments=tuple(arguments),
        working_directory=working_directory,
        jobs_hash=request.config_hash,
        contents=named_contents(contents_of_jobs(request.jobs)),
        versions=versions(),
        cpus=options.cpus_per_rank,
        gpus=options.gpus_per_rank,
    )
