"""How the ranks of a run begin: one of them makes or repairs the folder, and all agree on what is left to do."""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.launcher_messages import announce_run_directory
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.output_directory import clear_unbegun, make_output_directory
from isaaclab_arena.evaluation.planning import RunRequest, plan_attempt, plan_run
from isaaclab_arena.evaluation.resuming import check_same_run, folder_to_resume, take_up
from isaaclab_arena.storage.attempts import Attempt, JobWork, read_attempt, write_attempt
from isaaclab_arena.storage.run_lock import RunLock
from isaaclab_arena.storage.run_plan import RunPlan, read_run_plan, write_run_plan

_LOG = logging.getLogger(__name__)
_NOTHING_TO_DO = "nothing"


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that all ranks have begun.

    Attributes:
        output_directory: Its folder.
        plan: What it is, as it was written when it began.
        attempt: What is left to do; None if everything is done and intact.
        lock: Held by this rank until it exits.
    """

    output_directory: Path
    plan: RunPlan
    attempt: Attempt | None
    lock: RunLock


def start_run(request: RunRequest, context: DistributedContext, ranks: Ranks) -> StartedRun:
    """Agree on the plan, make the folder or go on with an earlier run's, and return what is to be done.

    Raises:
        ConfigError: If the ranks read different jobs, the folder cannot be used, another run is at work in it, or a
            run is to be resumed that is not there or is another one.
        DistributedError: If a rank does not answer.
        StorageError: If a file cannot be read or written.
    """
    ranks.agree("jobs", request.config_hash)
    agree_on_versions(ranks, provenance.versions())
    devices = ranks.gather("device", str(context.device))
    folder, number, lock = "", "", None
    with ranks.keep_waiting():
        if context.is_rank_zero:
            path, attempt, lock = _begin(request, context, devices)
            folder, number = str(path), _NOTHING_TO_DO if attempt is None else str(attempt.number)
            announce_run_directory(path)
    path = Path(ranks.share_from_rank_zero("output_directory", folder))
    number = ranks.share_from_rank_zero("attempt", number)
    ranks.check_shared(path)
    lock = (lock or RunLock(path)).share()
    # Only when all of them hold it may one of them leave.
    ranks.gather("lock", "held")
    attempt = None if number == _NOTHING_TO_DO else read_attempt(path, int(number))
    return StartedRun(output_directory=path, plan=read_run_plan(path), attempt=attempt, lock=lock)


def agree_on_versions(ranks: Ranks, versions: Mapping[str, str]) -> None:
    """Refuse machines with different packages: where an episode runs must not decide what comes out of it.

    Args:
        ranks: All ranks of the run.
        versions: Package to version, on this rank.

    Raises:
        ConfigError: If they differ; the message names the package and each rank's version.
    """
    held = [json.loads(text) for text in ranks.gather("versions", json.dumps(dict(versions)))]
    for package in sorted({name for each in held for name in each}):
        found = [each.get(package, "none") for each in held]
        if len(set(found)) > 1:
            listed = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(found))
            raise ConfigError(f"the ranks have different versions of {package} ({listed}); install the same everywhere")


def _begin(
    request: RunRequest, context: DistributedContext, devices: Sequence[str]
) -> tuple[Path, Attempt | None, RunLock]:
    """Set the run up, as rank 0 does alone; the lock that is returned can be shared."""
    run_id = uuid.uuid4().hex
    plan = plan_run(request, context, devices, run_id=run_id)
    options = request.options
    path = None
    if options.resume is not None:
        path = folder_to_resume(
            resume=options.resume, output_dir=options.output_dir, output_base_dir=options.output_base_dir, plan=plan
        )
    resumes = path is not None
    if path is None:
        path = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
    lock = RunLock(path).hold_alone()
    number, jobs = 1, _all_jobs(request)
    if resumes:
        begun = check_same_run(path, plan)
        resumed = take_up(path, begun, retry_errors=options.retry_errors)
        number, jobs = resumed.number, resumed.jobs
        _LOG.info("going on with %s: %d of %d jobs are not finished", path, len(jobs), len(request.jobs))
    else:
        clear_unbegun(path)
        write_run_plan(path, plan)
    attempt = None
    if jobs or not resumes:
        attempt = plan_attempt(request, context, devices, number=number, run_id=run_id, jobs=jobs)
        write_attempt(path, attempt)
    return path, attempt, lock.share()


def _all_jobs(request: RunRequest) -> tuple[JobWork, ...]:
    return tuple(JobWork(job=job.config.name) for job in request.jobs if job.config.status is JobStatus.PENDING)
