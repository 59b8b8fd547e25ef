"""``isaaclab-arena recover``: bring back the plan of a run, whose file was lost or damaged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tyro

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena.evaluation.planning import RunRequest, plan_run
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import ledger
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.recovery import recorded_config_hashes, recover_plan


def rebuilt_plan(output_directory: Path, *, may_import: bool) -> ledger.RunPlan:
    """Rebuild a run's plan if its recordings prove the same configuration; ConfigError or StorageError if not."""
    # ConfigError names the missing part: the first attempt, the job file, recordings, or equal jobs. StorageError:
    # there is no first attempt. ``may_import`` allows jobs with code that is not registered.
    attempt = ledger.read_attempt(output_directory, 1)
    request = _asked_for(attempt, ledger.attempt_path(output_directory, 1), may_import=may_import)
    hashes = recorded_config_hashes(output_directory)
    if not hashes:
        message = (
            "holds no recording that says with which configuration it was made, so nothing shows that the jobs of "
        )
        message += f"{request.source_file or 'the command line'} are still those of this run"
        raise ConfigError(message, file=str(output_directory))
    if wrong := [(job, found) for job, found in hashes.items() if found != request.config_hash]:
        message = (
            f"is not what the run began with: its jobs have the hash {request.config_hash} now, the recordings were "
            f"made with {wrong[0][1]} (job '{wrong[0][0]}'); put it back as it was"
        )
        raise ConfigError(message, file=request.source_file or "command line")

    contents = {work.job: work.contents for work in attempt.jobs if work.contents is not None}
    backends = {work.job: work.backend for work in attempt.jobs}
    latencies = {work.job: work.latency for work in attempt.jobs if work.latency is not None}
    entries = (work for each in ledger.read_attempts(output_directory, attempt.run)[0] for work in each.jobs)
    grown = {work.job: work.num_episodes for work in entries if work.num_episodes is not None}
    jobs = []
    plan = plan_run(request, attempt.world_size, attempt.devices, run_id=attempt.run_id, contents=contents)
    for job in plan.jobs:
        config = replace(job.config, num_episodes=grown.get(job.name, job.config.num_episodes))
        latency = latencies.get(job.name, job.latency)
        jobs.append(replace(job, config=config, backend=backends.get(job.name), latency=latency))
    return replace(
        plan,
        created_at=attempt.started_at,
        command_line=attempt.command_line,
        versions=attempt.versions,
        git_revision=attempt.git_revision,
        machine=attempt.machine,
        jobs=tuple(jobs),
    )


def _asked_for(attempt: ledger.Attempt, path: Path, *, may_import: bool) -> RunRequest:
    programs = {eval_runner.PROGRAM: eval_runner.asked_for, policy_runner.PROGRAM: policy_runner.asked_for}
    program, *arguments = attempt.command_line or ("",)
    if program not in programs:
        raise ConfigError(f"its command line is of no runner: '{program}'", file=str(path), key="command_line")
    try:
        return programs[program](tuple(arguments), may_import=may_import)
    except SystemExit as error:
        message = f"this version does not take its options: {' '.join(arguments)}"
        raise ConfigError(message, file=str(path), key="command_line") from error
    except ConfigError as error:
        message = (
            f"what it asked for cannot be read any more, from '{Path.cwd()}': {' '.join(arguments)}; put the job file "
            "back as it was, and recover from the directory in which the run was started"
        )
        raise ConfigError([Problem(message, file=str(path), key="command_line"), *error.problems]) from error


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Write run.json again where it was lost or damaged.

    It is taken from the copy that a run keeps beside its attempts, or, where there is none, made anew from the command
    line of the first attempt and its job file.
    """

    output_directory: tyro.conf.Positional[Path]
    """The directory of one run."""
    no_import: bool = False
    """Refuse jobs that name unregistered code."""


def main(argv: Sequence[str]) -> int:
    """Recover the plan of one run, and show the possible next steps; ConfigError if it cannot be restored."""
    options = tyro.cli(RecoverOptions, args=list(argv), prog="isaaclab-arena recover")
    rebuild = partial(rebuilt_plan, may_import=not options.no_import)
    plan, is_made_anew = recover_plan(options.output_directory, rebuild)
    jobs = "1 job" if len(plan.jobs) == 1 else f"{len(plan.jobs)} jobs"
    told = f"{options.output_directory / RUN_PLAN_FILE} is there again, with {jobs}; merge, verify, or resume"
    if is_made_anew:
        told += f"\nmade anew from what was typed: {' '.join(plan.command_line)}; its jobs are those that were recorded"
    print(plain_text(told, keep_lines=True))
    return 0
