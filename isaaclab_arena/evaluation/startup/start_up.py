"""Start the ranks of a run: one makes or repairs the directory, and all agree on what is left to do."""

import hashlib
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from isaaclab_arena.config.schema import Delays, JobStatus
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import visible_gpu_count
from isaaclab_arena.distributed.launch_options import announce_run_directory
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.planning import RunRequest, plan_attempt, plan_run
from isaaclab_arena.evaluation.process.watchdog import Watchdog
from isaaclab_arena.evaluation.provenance import provenance
from isaaclab_arena.evaluation.startup.common_directory import common_directory
from isaaclab_arena.evaluation.startup.content_check import check_names, jobs_to_run_anew
from isaaclab_arena.evaluation.startup.contents import contents_of_jobs
from isaaclab_arena.evaluation.startup.measured_latency import settle_latencies, with_latencies
from isaaclab_arena.evaluation.startup.output_directory import clear_unbegun, make_output_directory
from isaaclab_arena.evaluation.startup.policy_servers import policy_as_served
from isaaclab_arena.evaluation.startup.resuming import check_same_run, directory_to_resume, take_up
from isaaclab_arena.evaluation.startup.settled_backends import (
    Machinery,
    refuse_slow_backends,
    settle_backends,
    with_backends,
)
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.contents import Contents, changes
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry, read_attempt, write_attempt
from isaaclab_arena.storage.run.run_lock import RunLock
from isaaclab_arena.storage.run.run_plan import RunPlan, read_run_plan, revise_run_plan, write_run_plan

_LOG = logging.getLogger(__name__)
_NOTHING_TO_DO = "nothing"
_MAX_TOLD = 5


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that all ranks have begun.

    Attributes:
        output_directory: Its directory, by the name under which this rank sees it.
        plan: What it is, as it was written when it began.
        attempt: What is left to do; None if everything is done and intact.
        lock: Held by this rank until it exits.
    """

    output_directory: Path
    plan: RunPlan
    attempt: Attempt | None
    lock: RunLock


def start_run(request: RunRequest, context: DistributedContext, ranks: Ranks) -> StartedRun:
    """Agree on the plan, make the directory or go on with an earlier run's, and return what is to be done.

    Raises:
        ConfigError: If the ranks read different jobs, the directory cannot be used, another run is at work in it, or a
            run is to be resumed that is not there or is another one.
        DistributedError: If a rank does not answer.
        StorageError: If a file cannot be read or written.
    """
    begin = _agree_and_begin(request, context, ranks)
    path = common_directory(ranks, request.options, None if begin is None else begin.directory.path)
    number, lock = "", None
    with ranks.keep_waiting():
        if begin is not None:
            attempt = begin.begin()
            number = _NOTHING_TO_DO if attempt is None else str(attempt.number)
            announce_run_directory(path)
            lock = begin.lock.share()
    number = ranks.share_from_rank_zero("attempt", number)
    lock = lock or RunLock(path).share()
    # Only when all of them hold it may one of them leave.
    ranks.gather("lock", "held")
    attempt = None if number == _NOTHING_TO_DO else read_attempt(path, int(number))
    return StartedRun(output_directory=path, plan=read_run_plan(path), attempt=attempt, lock=lock)


def start_run_alone(request: RunRequest, context: DistributedContext, devices: Sequence[str]) -> StartedRun:
    """Begin a run whose ranks come later, each with what this process has planned; see `start_run`.

    Args:
        request: What the run is to do.
        context: Rank 0 of as many as there may be.
        devices: Device of each rank.
    """
    check_names(request.options.rerun, [job.config.name for job in request.jobs])
    begin = _Beginning(request, context, devices, contents_of_jobs(request.jobs))
    path = begin.directory.path
    attempt = begin.begin()
    announce_run_directory(path)
    return StartedRun(output_directory=path, plan=read_run_plan(path), attempt=attempt, lock=begin.lock.share())


def _agree_and_begin(request: RunRequest, context: DistributedContext, ranks: Ranks) -> "_Beginning | None":
    """Refuse ranks that differ in what they are to do, and return the run as rank 0 sets it up; None elsewhere."""
    check_names(request.options.rerun, [job.config.name for job in request.jobs])
    limits = [(job.config.timeout_s, job.config.episode_timeout_s) for job in request.jobs]
    # The hash of the jobs leaves them out, because a resume may have others.
    jobs = {"jobs": request.config_hash, "time limits of jobs": hashlib.sha256(json.dumps(limits).encode()).hexdigest()}
    ranks.agree_on("jobs and options", {**jobs, **request.options.of_every_rank()})
    agree_on_versions(ranks, provenance.versions())
    devices = ranks.gather("device", str(context.device))
    on_cpu = [str(rank) for rank, device in enumerate(devices) if torch.device(device).type == "cpu"]
    if context.is_rank_zero and 0 < len(on_cpu) < len(devices):
        _LOG.warning(
            "of %d ranks, %s run on the CPU and the others on GPUs, so what has a choice is simulated on CPUs; "
            "isaaclab-arena doctor shows the GPUs that a node has, and --device cpu says that none is meant",
            len(devices),
            ", ".join(on_cpu[:_MAX_TOLD]) + (f" and {len(on_cpu) - _MAX_TOLD} more" if len(on_cpu) > _MAX_TOLD else ""),
        )
    with ranks.keep_waiting():
        # It reads every checkpoint from end to end, which takes a while where they are large.
        # One rank of each node does it: where they share no disk, their files have to be the same.
        contents = contents_of_jobs(request.jobs) if context.is_rank_zero or context.local_rank == 0 else {}
    agree_on_contents(ranks, contents)
    return _Beginning(request, context, devices, contents) if context.is_rank_zero else None


def agree_on_versions(ranks: Ranks, versions: Mapping[str, str]) -> None:
    """Refuse nodes with different packages: where an episode runs must not decide what comes out of it.

    Args:
        ranks: All ranks of the run.
        versions: Package to version, on this rank.

    Raises:
        ConfigError: If they differ; the message names the package and each rank's version.
    """
    named = {f"the version of {package}": version for package, version in versions.items()}
    ranks.agree_on("versions", named, way_out="install the same everywhere")


def agree_on_contents(ranks: Ranks, contents: Mapping[str, Contents]) -> None:
    """Refuse nodes whose checkpoints, classes or robots differ.

    Args:
        ranks: All ranks of the run.
        contents: What each job evaluates, as this rank's node has it; nothing on a rank that did not look.

    Raises:
        ConfigError: If they differ; the message names the rank and what differs there.
    """
    merged = named_contents(contents)
    text = json.dumps(merged, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest() if contents else ""
    digests = ranks.gather("contents", digest)
    if {*digests} <= {"", digests[0]}:
        return
    first: dict[str, str] = json.loads(ranks.share_long_from_rank_zero("contents of rank 0", text))
    told = [f"{name} {how} here" for name, how in changes(first, merged)] if contents else []
    verdicts = ranks.gather("verdict on the contents", "; ".join(told[:_MAX_TOLD]))
    raise ConfigError(
        [
            Problem(f"rank {rank} is on a node with other files than rank 0: {verdict}; copy the same everywhere")
            for rank, verdict in enumerate(verdicts)
            if verdict
        ]
    )


def named_contents(contents: Mapping[str, Contents]) -> dict[str, str]:
    """Return the content of everything that jobs evaluate, by a name that names the job too."""
    return {f"job '{job}': {name}": content for job, each in contents.items() for name, content in _named_of(each)}


def _named_of(contents: Contents) -> list[tuple[str, str]]:
    return [*contents.policy.items(), *((f"environment: {name}", each) for name, each in contents.environment.items())]


class _Beginning:
    """The run as rank 0 sets it up, alone: it chooses the directory, then writes down there what is to be done.

    Args:
        request: What the run is to do.
        context: Who this process is.
        devices: Device of each rank.
        contents: What each job that is to run evaluates.
    """

    def __init__(
        self,
        request: RunRequest,
        context: DistributedContext,
        devices: Sequence[str],
        contents: Mapping[str, Contents],
    ) -> None:
        self._request = request
        self._context = context
        self._devices = devices
        self._run_id = uuid.uuid4().hex
        self._contents = contents
        self._plan = plan_run(request, context, devices, run_id=self._run_id, contents=contents)
        options = request.options
        self._machinery = Machinery(
            devices=tuple(devices),
            num_threads=options.num_threads or default_num_threads(context.local_world_size),
            num_groups=options.pipeline,
            measures=torch.device(devices[0]).type != "cuda" or visible_gpu_count() > 0,
        )
        self.directory = _choose_directory(request.options, self._plan)
        self.lock = RunLock(self.directory.path).hold_alone()

    def begin(self) -> Attempt | None:
        """Write the plan or compare with the one that is there, and return what is to be done; None for nothing."""
        try:
            return self._begin()
        except BaseException:
            # Who asks for a run in the wrong way may ask again, from the same process too.
            self.lock.release()
            raise

    def _begin(self) -> Attempt | None:
        request, path = self._request, self.directory.path
        number, jobs, anew, going_on = 1, _all_jobs(request), (), None
        known: dict[str, str] = {}
        measured: dict[str, Delays] = {}
        if self.directory.resumes:
            going_on = check_same_run(path, self._plan)
            begun = going_on.plan
            known = {job.name: job.backend for job in begun.jobs if job.backend is not None}
            measured = {job.name: job.latency for job in begun.jobs if job.latency is not None}
            rerun = request.options.rerun
            anew = jobs_to_run_anew(path, begun, self._plan, rerun, has_recorded=going_on.has_recorded)
            # Before what they have is set aside.
            refuse_slow_backends(
                request.jobs, with_backends([AttemptEntry(job=name) for name in anew], known), self._machinery
            )
            resumed = take_up(
                path,
                going_on,
                retry_errors=request.options.retry_errors,
                max_equal_errors=request.options.max_equal_errors,
                anew=anew,
            )
            number, jobs = resumed.number, resumed.jobs
            _LOG.info("going on with %s: %d of %d jobs are not finished", path, len(jobs), len(request.jobs))
            if not jobs:
                return None
        else:
            clear_unbegun(path)
        left = {work.job for work in jobs}
        to_run = [job for job in request.jobs if job.config.name in left]
        settled = settle_backends(to_run, self._machinery, known=known, watch=self._watch)
        jobs = [replace(job, contents=self._contents.get(job.job), is_rerun=job.job in anew) for job in jobs]
        asked = partial(policy_as_served, options=request.options, output_directory=path)
        latencies = settle_latencies(to_run, self._machinery, known=measured, asked=asked, watch=self._watch)
        jobs = with_latencies(with_backends(jobs, settled), latencies)
        refuse_slow_backends(to_run, jobs, self._machinery)
        if not self.directory.resumes:
            planned = tuple(
                replace(job, backend=settled.get(job.name), latency=latencies.get(job.name, job.latency))
                for job in self._plan.jobs
            )
            write_run_plan(path, replace(self._plan, jobs=planned))
        elif going_on is not None and going_on.is_revised:
            revise_run_plan(path, going_on.plan)
        attempt = plan_attempt(
            request,
            self._context,
            self._devices,
            number=number,
            run_id=self._run_id,
            run=self._run_id if going_on is None else going_on.plan.run_id,
            jobs=jobs,
        )
        write_attempt(path, attempt)
        return attempt

    def _watch(self, job: str) -> AbstractContextManager[None]:
        # Under a name that the next start clears away if this one dies with it.
        watchdog = Watchdog(self.directory.path / f".{RUN_PLAN_FILE}.watchdog.tmp")
        silence_s = self._request.options.build_timeout_s
        return watchdog.watch(job, silence_s=silence_s, missing="has not been tried on a GPU in")


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The directory that rank 0 has chosen for a run.

    Attributes:
        path: Its path there.
        resumes: Whether it holds a run that is to go on.
    """

    path: Path
    resumes: bool


def _choose_directory(options: RunOptions, plan: RunPlan) -> RunDirectory:
    if options.resume is not None:
        path = directory_to_resume(
            resume=options.resume, output_dir=options.output_dir, output_base_dir=options.output_base_dir, plan=plan
        )
        if path is not None:
            return RunDirectory(path=path, resumes=True)
    path = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
    return RunDirectory(path=path, resumes=False)


def _all_jobs(request: RunRequest) -> tuple[AttemptEntry, ...]:
    return tuple(AttemptEntry(job=job.config.name) for job in request.jobs if job.config.status is JobStatus.PENDING)
