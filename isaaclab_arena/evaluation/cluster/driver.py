"""Drives a run on a cluster: plans it, keeps its ranks alive, and makes the tables at the end."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.cluster.supervisor import ClusterOptions, Engine, NodeNeeds, RankSupervisor, RunOrders
from isaaclab_arena.evaluation.contents import contents_of_jobs
from isaaclab_arena.evaluation.heartbeat import RankWatch
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import watch_for_interruption
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.evaluation.run import (
    RunConduct,
    consolidate_what_ranks_left,
    finished_run,
    full_disk_explained,
    how_to_go_on,
    live_tracking,
    merge_and_show,
    saving_conditions,
    shown_while_it_runs,
)
from isaaclab_arena.evaluation.start_up import StartedRun, named_contents, start_run_alone
from isaaclab_arena.logs import log_file
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
    context = DistributedContext(world_size=options.num_ranks, local_world_size=options.num_ranks)
    device = options.device or ("cuda" if options.gpus_per_rank else "cpu")
    # Connect before the run has a directory, so that a missing cluster leaves none.
    with (connect or _connect_to_ray)(options) as engine:
        needs = needs_of(request, options, working_directory=engine.working_directory())
        engine.check_nodes(needs)
        started = start_run_alone(request, context, [device] * options.num_ranks)
        conduct = RunConduct(is_whole_program=True, writes_report=True)
        with started.lock, watch_for_interruption() as interruption:
            if started.attempt is None:
                return finished_run(request, started.output_directory, conduct)
            if needs.working_directory is None and started.output_directory.is_relative_to(Path.cwd()):
                _LOG.warning(
                    "%s is in Ray's copy of the working directory, which Ray removes some time after the run; name "
                    "another one by --output_dir, or copy this one",
                    started.output_directory,
                )
            orders = RunOrders(
                run=f"{started.output_directory.name}-{started.attempt.run_id[:6]}",
                needs=needs,
                config_hash=started.plan.config_hash,
                output_directory=str(started.output_directory),
                attempt=started.attempt,
                num_ranks=options.num_ranks,
                node_directory=None if options.node_dir is None else str(Path(options.node_dir).absolute()),
            )
            supervisor = RankSupervisor(engine, orders, interruption, fail_fast=options.fail_fast)
            with full_disk_explained():
                code = _work(supervisor, request, options, started, started.attempt, conduct, context)
            return interruption.exit_code or code


def _work(
    supervisor: RankSupervisor,
    request: RunRequest,
    options: ClusterOptions,
    started: StartedRun,
    attempt: Attempt,
    conduct: RunConduct,
    context: DistributedContext,
) -> int:
    """Run the ranks to their end, write and show the tables, and return the exit code."""
    save_conditions = saving_conditions(request, started.output_directory)
    last_line = how_to_go_on(request, context, started.output_directory)
    with live_tracking(request, started):
        # A rank without a status may be waiting for resources, so the display never calls it dead.
        watch = RankWatch(
            started.output_directory,
            world_size=attempt.world_size,
            run_id=attempt.run_id,
            missing_after_s=float("inf"),
        )
        log = log_file(started.output_directory / "logs" / "driver.log", 0)
        with log, shown_while_it_runs(request, started.output_directory, conduct, watch.look):
            supervisor.work(options.start_timeout_s)
        consolidate_what_ranks_left(attempt, started.output_directory, is_all=True)
        code = merge_and_show(
            request, conduct, started.output_directory, save_conditions=save_conditions, last_line=last_line
        )
    return code if supervisor.failure is None else 1


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
