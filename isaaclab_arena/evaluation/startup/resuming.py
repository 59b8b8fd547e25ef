"""Resume a run: find its directory, check that it is the same run, and repair what a crash left there."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.plan.answered import answer_watch
from isaaclab_arena.evaluation.plan.planning import plan_differences, revised_plan
from isaaclab_arena.evaluation.startup.content_check import forget_settled, set_aside_what_does_not_count
from isaaclab_arena.evaluation.startup.output_directory import holds_no_run, named_directory
from isaaclab_arena.storage.layout import RUN_PLAN_FILE, job_directory
from isaaclab_arena.storage.recordings import locate_episodes
from isaaclab_arena.storage.recovery.recovery import recover_run
from isaaclab_arena.storage.run.attempts import AttemptEntry, attempt_numbers, policy_batches_in_effect, read_attempts
from isaaclab_arena.storage.run.commits import read_commits
from isaaclab_arena.storage.run.job_reports import ReportedStatus, Reproducible, read_job_reports
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan, plan_copy_path, read_run_plan

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A run that was taken up again.

    Attributes:
        number: Number of the attempt that begins.
        jobs: What is left to do; nothing if the run is complete.
    """

    number: int
    jobs: tuple[AttemptEntry, ...]


@dataclass(frozen=True, kw_only=True)
class GoingOn:
    """How a run goes on.

    Attributes:
        plan: Its plan from now on.
        is_revised: Whether that is another one than it had.
        grown: How many episodes jobs have that have more than before, by name.
        played_with: The number of env slots that episodes of jobs were played with that have another number now.
        has_recorded: Whether a job has recorded anything, by its name.
    """

    plan: RunPlan
    is_revised: bool
    grown: Mapping[str, int]
    played_with: Mapping[str, int]
    has_recorded: Callable[[str], bool]


def directory_to_resume(*, resume: str, output_dir: str | None, output_base_dir: str, plan: RunPlan) -> Path | None:
    """Return the directory of the run to go on with.

    Args:
        resume: The directory if it was named, otherwise empty.
        output_dir: The exact directory of the run, where the command line names it.
        output_base_dir: Where dated directories are, for a run that named none.
        plan: What is asked for now; of dated directories the newest with the same plan is meant.

    Returns:
        The directory; None if ``output_dir`` names one in which no run has begun yet.

    Raises:
        ConfigError: If there is no such run.
    """
    if resume:
        return _directory_of_run(Path(resume), option="--resume")
    if output_dir is not None:
        path = named_directory(output_dir)
        return None if holds_no_run(path) else _directory_of_run(path, option="--output_dir")
    base = named_directory(output_base_dir)
    runs = sorted((path.parent for path in base.glob(f"*/{RUN_PLAN_FILE}")), reverse=True)
    if not runs:
        raise ConfigError(Problem(f"no run in '{base}' to go on with; name its directory", key="--resume"))
    return _run_that_is_meant(runs, plan).absolute()


def check_same_run(output_directory: Path, plan: RunPlan) -> GoingOn:
    """Return how a run goes on, if it can go on as it is asked for now.

    Args:
        output_directory: The run's directory.
        plan: What is asked for now.

    Raises:
        ConfigError: With everything that speaks against it.
    """
    begun = read_run_plan(output_directory)
    has_recorded = cache(partial(_has_recorded, output_directory, begun.run_id))
    wanted = {job.name: job.config.num_envs for job in plan.jobs}
    played_with = {
        job.name: job.config.num_envs
        for job in (() if begun.settings.get("deterministic") else begun.jobs)
        if wanted.get(job.name, job.config.num_envs) != job.config.num_envs and has_recorded(job.name)
    }
    differences = plan_differences(begun, plan, has_recorded=has_recorded)
    for name, num_envs in played_with.items():
        because = _why_only_plan(output_directory, begun, name)
        if because is not None:
            message = f"was {num_envs} when the run began, now {wanted[name]}, and {because}"
            differences.append(Problem(message, job=name, key="num_envs"))
    if differences:
        differ = "1 thing differs" if len(differences) == 1 else f"{len(differences)} things differ"
        message = f"is another run: {differ}; start a new one, or ask for the same again"
        raise ConfigError([Problem(message, file=str(output_directory)), *differences])
    revised = revised_plan(begun, plan, has_recorded=has_recorded)
    changed = [(was, now) for was, now in zip(begun.jobs, revised.jobs, strict=True) if was is not now]
    grown = {now.name: now.config.num_episodes or 0 for was, now in changed if _grows(was, now)}
    for name, number in grown.items():
        _LOG.info("job '%s' goes on to %d episodes", name, number)
    return GoingOn(
        plan=revised, is_revised=bool(changed), grown=grown, played_with=played_with, has_recorded=has_recorded
    )


def _grows(was: PlanEntry, now: PlanEntry) -> bool:
    return was.config.num_episodes != now.config.num_episodes


def _has_recorded(output_directory: Path, run_id: str | None, job: str) -> bool:
    """Whether a job has an episode, or has ended without any; what cannot be read may be one."""
    directory = job_directory(output_directory, job)
    log = read_commits(directory, job)
    files, problems = locate_episodes(directory, job)
    reports, _ = read_job_reports(directory, job, run_id)
    has_ended = any(report.status is ReportedStatus.COMPLETED for report in reports)
    return bool(log.lines or log.problems or files or problems or has_ended)


def _why_only_plan(output_directory: Path, begun: RunPlan, job: str) -> str | None:
    """Return why a job's episodes would be others with other env slots, None where no rank has said so."""
    reports, _ = read_job_reports(job_directory(output_directory, job), job, begun.run_id)
    plan = next((report for report in reports if report.reproducible is Reproducible.PLAN), None)
    if plan is None:
        return None
    return f"its episodes are reproducible as plan, not bitwise: {plan.plan_because or 'nothing promises more'}"


def take_up(
    output_directory: Path,
    going_on: GoingOn,
    *,
    retry_errors: bool,
    max_equal_errors: int = 0,
    anew: Sequence[str] = (),
) -> Resumed:
    """Repair what a crash has left in the directory of a run, and return what is left to do.

    The caller holds the run's lock alone.

    Args:
        output_directory: The run's directory.
        going_on: How it goes on.
        retry_errors: Whether episodes that ended in an error run again.
        max_equal_errors: How many in a row end a job, see `AnswerWatch`.
        anew: Jobs whose episodes do not count any more.

    Raises:
        StorageError: If something cannot be read or repaired.
    """
    number, plan = max(attempt_numbers(output_directory), default=0) + 1, going_on.plan
    set_aside_what_does_not_count(output_directory, anew, attempt=number)
    recovery = recover_run(output_directory, plan, retry_errors=retry_errors, attempt=number)
    for note in recovery.notes:
        _LOG.warning("%s", note)
    batches = policy_batches_in_effect(output_directory, plan.jobs, read_attempts(output_directory, plan.run_id)[0])
    batches = {job: batch for job, batch in batches.items() if job not in anew}
    finished = {each.job.name: each.finished for each in recovery.jobs}
    watch = answer_watch(output_directory, plan.questions, finished, attempt=number, max_equal_errors=max_equal_errors)
    for each in recovery.jobs:
        if each.reports:
            watch.suspect(each.job.name)
    left = recovery.left(watch.needed)
    # A lost file of an attempt gives its number to no other: lines, reports and claims are of it.
    number = max([number, *(each.last_attempt + 1 for each in recovery.jobs)])
    begin = {job.job for job in left if not going_on.has_recorded(job.job)}
    for name in begin:
        forget_settled(output_directory, name, attempt=number)
    jobs = tuple(
        replace(
            job,
            policy_batch=None if job.job in begin else batches.get(job.job),
            num_episodes=going_on.grown.get(job.job),
            num_envs=going_on.played_with.get(job.job),
        )
        for job in left
    )
    return Resumed(number=number, jobs=jobs)


def _run_that_is_meant(runs: Sequence[Path], plan: RunPlan) -> Path:
    """Return the newest run that has the same plan, else the newest that can go on so, else the newest.

    Of the newest the differences are worth telling, where none can.
    """
    able = None
    for run in runs:
        try:
            begun = read_run_plan(run)
        except ConfigError as error:
            # One that the system cannot read may be the one that is meant.
            _LOG.warning("%s is passed over: %s", run, error)
            continue
        if plan_differences(begun, plan):
            continue
        num_envs, wanted = ([job.config.num_envs for job in each.jobs] for each in (begun, plan))
        if num_envs == wanted and revised_plan(begun, plan, has_recorded=lambda _: True) is begun:
            return run
        able = able or run
    return able or runs[0]


def _directory_of_run(path: Path, *, option: str) -> Path:
    if not path.is_dir():
        raise ConfigError(Problem(f"there is no directory '{path}'", key=option))
    if plan_copy_path(path).is_file() and not (path / RUN_PLAN_FILE).is_file():
        raise ConfigError(
            Problem(f"'{path}' has lost its {RUN_PLAN_FILE}; isaaclab-arena recover brings it back", key=option)
        )
    if not (path / RUN_PLAN_FILE).is_file():
        raise ConfigError(
            Problem(f"'{path}' holds no {RUN_PLAN_FILE}: no run to go on with; leave --resume out", key=option)
        )
    return path.absolute()
