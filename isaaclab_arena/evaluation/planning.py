"""What a run sets out to do, as it is asked for and as it is written down."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.interfaces.variation import spelled
from isaaclab_arena.storage.run_plan import PlannedJob, RunPlan


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is to do, the same on every rank.

    Attributes:
        jobs: Every job of the file.
        config_hash: Hash of the resolved jobs.
        source_file: The job file, None for a job from the command line.
        command_line: What was typed, one token each.
        options: The shared options.
    """

    jobs: tuple[Job, ...]
    config_hash: str
    source_file: str | None
    command_line: tuple[str, ...]
    options: RunOptions


def plan_run(
    request: RunRequest,
    context: DistributedContext,
    devices: Sequence[str],
    shares: Sequence[Sequence[int]],
    run_id: str,
) -> RunPlan:
    """Return what ``run.json`` says before anything runs.

    Args:
        request: What the run is to do.
        context: Who this process is.
        devices: Device of each rank.
        shares: Job indices of each rank.
        run_id: Names this start of the program.
    """
    rank_of = {index: rank for rank, share in enumerate(shares) for index in share}
    return RunPlan(
        run_id=run_id,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        config_hash=request.config_hash,
        source_file=request.source_file,
        command_line=request.command_line,
        world_size=context.world_size,
        versions=provenance.versions(),
        git_revision=provenance.git_revision(Path.cwd()),
        machine=provenance.machine(),
        devices=tuple(devices),
        jobs=tuple(_planned_job(job, rank_of[job.config.index]) for job in request.jobs),
    )


def _planned_job(job: Job, rank: int) -> PlannedJob:
    config = job.config
    return PlannedJob(
        index=config.index,
        name=config.name,
        environment=config.environment,
        task=config.environment,
        embodiment=job.environment_option("embodiment"),
        object=job.environment_option("object"),
        policy_type=config.policy_type,
        policy_config=job.policy_options,
        environment_args=config.environment_args,
        variations=spelled(job.variations),
        conditions=config.conditions,
        seed=config.seed,
        num_envs=config.num_envs,
        num_episodes=config.num_episodes,
        num_steps=config.num_steps,
        rank=rank if config.status is JobStatus.PENDING else None,
        status=str(config.status),
    )
