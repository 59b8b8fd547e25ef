"""Make the plan of a run and of its attempts, and compare plans."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.clock import now
from isaaclab_arena.config.schema import WITHOUT_RESULT, JobStatus
from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import Problem
from isaaclab_arena.evaluation.options import Assignment, RunOptions
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.turns import home_index, jobs_taking_turns
from isaaclab_arena.evaluation.provenance import provenance
from isaaclab_arena.interfaces.variation import spelled
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan

_MAX_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is to do, the same on every rank.

    Attributes:
        jobs: Every job of the file.
        config_hash: Hash of the resolved jobs.
        source_file: The job file, None for a job from the command line.
        command_line: What was typed, one token each.
        options: The shared options.
        questions: What is asked of the jobs, which stop as soon as it is answered.
        import_s: What this process took from its start to that of the program [s], its own on every rank; None if
            nobody knows.
    """

    jobs: tuple[Job, ...]
    config_hash: str
    source_file: str | None
    command_line: tuple[str, ...]
    options: RunOptions
    questions: tuple[Question, ...] = ()
    import_s: float | None = None


def plan_run(
    request: RunRequest,
    context: DistributedContext,
    devices: Sequence[str],
    *,
    run_id: str,
    contents: Mapping[str, Contents] | None = None,
) -> RunPlan:
    """Return what ``run.json`` says before anything runs.

    Args:
        request: What the run is to do.
        context: Who this process is.
        devices: Device of each rank.
        run_id: Names this start of the program.
        contents: What each job that is to run evaluates, by its name.
    """
    return RunPlan(
        run_id=run_id,
        created_at=now(),
        config_hash=request.config_hash,
        source_file=request.source_file,
        command_line=request.command_line,
        world_size=context.world_size,
        versions=provenance.versions(),
        git_revision=provenance.git_revision(Path.cwd()),
        machine=provenance.node(),
        devices=tuple(devices),
        jobs=plan_entries(request, context.world_size, contents or {}),
        settings=request.options.result_settings(),
        questions=request.questions,
        working_directory=str(Path.cwd()),
    )


def plan_attempt(
    request: RunRequest,
    context: DistributedContext,
    devices: Sequence[str],
    *,
    number: int,
    run_id: str,
    jobs: Sequence[AttemptEntry],
) -> Attempt:
    """Return what ``attempts/attempt_<n>.json`` says before anything runs.

    Args:
        request: What the run is to do.
        context: Who this process is.
        devices: Device of each rank.
        number: 1 for the first start on this run.
        run_id: Names this start of the program.
        jobs: What is left to do.
    """
    return Attempt(
        number=number,
        run_id=run_id,
        started_at=now(),
        command_line=request.command_line,
        assignment=request.options.mode,
        world_size=context.world_size,
        devices=tuple(devices),
        versions=provenance.versions(),
        git_revision=provenance.git_revision(Path.cwd()),
        machine=provenance.node(),
        jobs=tuple(jobs),
        retry_errors=request.options.retry_errors,
        max_equal_errors=request.options.max_equal_errors,
    )


def plan_entries(request: RunRequest, world_size: int, contents: Mapping[str, Contents]) -> tuple[PlanEntry, ...]:
    """Return the jobs as the plan holds them, each with its rank where that is settled before the start."""
    is_settled = request.options.mode is Assignment.ROUND_ROBIN
    turns = jobs_taking_turns(request.jobs, request.questions)
    ranks = [home_index(job.config.index, turns) % world_size if is_settled else None for job in request.jobs]
    return tuple(
        _plan_entry(job, rank, contents.get(job.config.name)) for job, rank in zip(request.jobs, ranks, strict=True)
    )


def plan_differences(before: RunPlan, now: RunPlan) -> list[Problem]:
    """Return how a plan differs from the one that a run began with, one problem per key; what is left out is equal.

    In a deterministic run ``num_envs`` decides nothing, and may differ.
    """
    ignored = {*WITHOUT_RESULT, *(("num_envs",) if before.settings.get("deterministic") else ())}
    problems = [
        Problem(f"was {_shown(before.settings.get(name))} when the run began, now {_shown(value)}", key=f"--{name}")
        for name, value in now.settings.items()
        if before.settings.get(name) != value
    ]
    if before.questions != now.questions:
        problems.append(Problem("are others than when the run began", key="comparisons and bars"))
    known = {job.name: job for job in before.jobs}
    wanted = {job.name: job for job in now.jobs}
    problems += [Problem("is new", job=name) for name in wanted if name not in known]
    problems += [Problem("is missing now", job=name) for name in known if name not in wanted]
    for name, job in wanted.items():
        if name in known:
            problems += _job_differences(known[name], job, ignored)
    return problems


def _job_differences(before: PlanEntry, now: PlanEntry, ignored: Set[str]) -> list[Problem]:
    old, new = ({**dataclasses.asdict(job.config), "policy options": job.policy_config} for job in (before, now))
    # The server decides no result; its device does, as that of any network.
    old["policy_server.device"], new["policy_server.device"] = (
        each.config.policy_server and each.config.policy_server.device for each in (before, now)
    )
    if now.latency is not None:
        # What was measured when the run began stands, whatever would be measured now.
        old["latency in steps"], new["latency in steps"] = before.latency, now.latency
    old["saved conditions"], new["saved conditions"] = before.conditions_checksum, now.conditions_checksum
    for name in ignored:
        old["policy options"] = {key: value for key, value in old["policy options"].items() if key != name}
        new["policy options"] = {key: value for key, value in new["policy options"].items() if key != name}
    return [
        Problem(f"was {_shown(old.get(key))} when the run began, now {_shown(new.get(key))}", job=now.name, key=key)
        for key in sorted(old.keys() | new.keys())
        if key not in ignored and _plain(old.get(key)) != _plain(new.get(key))
    ]


def _plain(value: Any) -> Any:
    """Return a value as it comes back from a file, so that a tuple equals a list."""
    return json.loads(json_line(value))


def _shown(value: Any) -> str:
    text = json_line(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _plan_entry(job: Job, rank: int | None, contents: Contents | None) -> PlanEntry:
    config = job.config
    return PlanEntry(
        config=config,
        rank=rank if config.status is JobStatus.PENDING else None,
        task=job.task_name,
        embodiment=job.robot_name,
        object=job.environment_option("object"),
        policy_config=job.policy_options,
        variations=spelled(job.variations),
        conditions_checksum=_conditions_checksum(job),
        contents=contents,
        latency=None if job.latency is None else job.latency.delays,
    )


def _conditions_checksum(job: Job) -> int | None:
    return None if job.saved_conditions is None else zlib.crc32(json_line(job.saved_conditions).encode())
