"""Resume a run: find its directory, check that it is the same run, and repair what a crash left there."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.plan.answered import answer_watch
from isaaclab_arena.evaluation.plan.planning import plan_differences
from isaaclab_arena.evaluation.startup.content_check import set_aside_what_does_not_count
from isaaclab_arena.evaluation.startup.output_directory import holds_no_run, named_directory
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.recovery.recovery import recover_run
from isaaclab_arena.storage.run.attempts import AttemptEntry, attempt_numbers, policy_batches_in_effect, read_attempts
from isaaclab_arena.storage.run.run_plan import RunPlan, plan_copy_path, read_run_plan

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
    same = next((run for run in runs if _is_run_of(run, plan)), None)
    # Where none is the same, the newest is most likely meant, and its differences are worth telling.
    return (same or runs[0]).absolute()


def check_same_run(output_directory: Path, plan: RunPlan) -> RunPlan:
    """Return the plan that a run began with, if what is asked for now is the same.

    Raises:
        ConfigError: With every difference.
    """
    begun = read_run_plan(output_directory)
    differences = plan_differences(begun, plan)
    if differences:
        differ = "1 thing differs" if len(differences) == 1 else f"{len(differences)} things differ"
        message = f"is another run: {differ}; start a new one, or ask for the same again"
        raise ConfigError([Problem(message, file=str(output_directory)), *differences])
    return begun


def take_up(
    output_directory: Path, plan: RunPlan, *, retry_errors: bool, max_equal_errors: int = 0, anew: Sequence[str] = ()
) -> Resumed:
    """Repair what a crash has left in the directory of a run, and return what is left to do.

    The caller holds the run's lock alone.

    Args:
        output_directory: The run's directory.
        plan: The plan that it began with.
        retry_errors: Whether episodes that ended in an error run again.
        max_equal_errors: How many in a row end a job, see `AnswerWatch`.
        anew: Jobs whose episodes do not count any more.

    Raises:
        StorageError: If something cannot be read or repaired.
    """
    number = max(attempt_numbers(output_directory), default=0) + 1
    set_aside_what_does_not_count(output_directory, anew, attempt=number)
    recovery = recover_run(output_directory, plan, retry_errors=retry_errors, attempt=number)
    for note in recovery.notes:
        _LOG.warning("%s", note)
    batches = policy_batches_in_effect(output_directory, plan.jobs, read_attempts(output_directory)[0])
    batches = {job: batch for job, batch in batches.items() if job not in anew}
    finished = {job.job: job.finished for job in recovery.left}
    watch = answer_watch(output_directory, plan.questions, finished, attempt=number, max_equal_errors=max_equal_errors)
    for name in recovery.reported:
        watch.suspect(name)
    left = (job for job in recovery.left if job.job not in recovery.reported or not watch.is_over(job.job))
    jobs = tuple(replace(job, policy_batch=batches.get(job.job)) for job in left)
    return Resumed(number=number, jobs=jobs)


def _is_run_of(run: Path, plan: RunPlan) -> bool:
    try:
        return not plan_differences(read_run_plan(run), plan)
    except ConfigError as error:
        # One that the system cannot read may be the one that is meant.
        _LOG.warning("%s is passed over: %s", run, error)
        return False


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
