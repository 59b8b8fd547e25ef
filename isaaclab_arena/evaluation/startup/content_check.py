"""Going on with a run only if it still evaluates the same, or with the jobs that are to run anew."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.storage.contents import Contents, differences_of_contents
from isaaclab_arena.storage.layout import SET_ASIDE_DIRECTORY, SETTLED_FILE, job_directory
from isaaclab_arena.storage.recovery.job_repair import set_job_aside
from isaaclab_arena.storage.recovery.set_aside import move_aside
from isaaclab_arena.storage.run.attempts import contents_in_effect, read_attempts
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan

OPTION = "--rerun"

_LOG = logging.getLogger(__name__)
_MAX_SHOWN = 20


def check_names(rerun: Sequence[str], jobs: Sequence[str]) -> None:
    """Refuse to run anew what is no job.

    Args:
        rerun: What ``--rerun`` names.
        jobs: The names of all jobs.

    Raises:
        ConfigError: With one problem per name that is none.
    """
    unknown = [name for name in dict.fromkeys(rerun) if name not in jobs]
    if unknown:
        raise ConfigError(
            [Problem(f"there is no job '{name}'{did_you_mean(name, jobs)}", key=OPTION) for name in unknown]
        )


def jobs_to_run_anew(
    output_directory: Path,
    begun: RunPlan,
    now: RunPlan,
    rerun: Sequence[str],
    *,
    has_recorded: Callable[[str], bool] = lambda _: True,
) -> tuple[str, ...]:
    """Return the jobs whose episodes do not count any more, because they were made with something else.

    A job that has recorded nothing goes on with whatever it evaluates now. One that ``--rerun`` names and that
    evaluates what its episodes were made with is left as it is, so the same command may be given again after it was
    interrupted. Where a part is not known that cannot be seen: it runs anew.

    Args:
        output_directory: The run's directory.
        begun: The plan that it began with.
        now: What is asked for now, and what that evaluates.
        rerun: Jobs that may run anew.
        has_recorded: Whether a job has recorded anything, by its name.

    Raises:
        ConfigError: If other jobs evaluate something else than when their episodes ran, with every difference.
    """
    attempts, _ = read_attempts(output_directory, begun.run_id)
    before = contents_in_effect([job for job in begun.jobs if job.is_to_run], attempts)
    wanted = {job.name: job for job in now.jobs if job.name in before}
    unsaid = sorted(name for name in wanted if before[name] is None and name not in rerun)
    if unsaid:
        _LOG.warning(
            "%s was begun by a program that did not write down what it evaluates: whether %s still has the same "
            "checkpoint and the same code cannot be checked",
            output_directory,
            _in_words(unsaid),
        )
    changed = {name: problems for name, job in wanted.items() if (problems := _differences(job, before[name]))}
    refused = [name for name in changed if name not in rerun and has_recorded(name)]
    if refused:
        raise ConfigError(_refusal(output_directory, refused, [each for name in refused for each in changed[name]]))
    anew = []
    for name in dict.fromkeys(rerun):
        contents = before.get(name)
        if name in wanted and (contents is None or not contents.is_known or name in changed) and has_recorded(name):
            anew.append(name)
        else:
            _LOG.info("%s: job '%s' evaluates what it did before; its episodes stand", OPTION, name)
    return tuple(anew)


def set_aside_what_does_not_count(output_directory: Path, anew: Sequence[str], *, attempt: int) -> None:
    """Move what jobs have written out of the way; if it is interrupted, it may be done again.

    Until the attempt that begins is written down, the jobs count as what they were.

    Args:
        output_directory: The run's directory.
        anew: What `jobs_to_run_anew` has returned.
        attempt: Number of the attempt that begins.

    Raises:
        StorageError: If a file cannot be moved.
    """
    for name in anew:
        directory = job_directory(output_directory, name)
        why = f"{OPTION}: its episodes were made with something else"
        for line in set_job_aside(directory, name, attempt=attempt - 1, why=why):
            _LOG.warning("%s", line)
        forget_settled(output_directory, name, attempt=attempt)


def forget_settled(output_directory: Path, job: str, *, attempt: int) -> None:
    """Move aside on how many env slots a job's policy is asked: another network may need another number.

    Args:
        output_directory: The run's directory.
        job: Name of a job of which no episode counts.
        attempt: Number of the attempt that begins.

    Raises:
        StorageError: If the file cannot be moved.
    """
    directory = job_directory(output_directory, job)
    if (directory / SETTLED_FILE).exists():
        move_aside(directory / SETTLED_FILE, directory / SET_ASIDE_DIRECTORY / f"attempt_{attempt - 1}")


def _differences(job: PlanEntry, before: Contents | None) -> list[Problem]:
    if before is None or job.contents is None:
        return []
    return [Problem(how, job=job.name, key=what) for what, how in differences_of_contents(before, job.contents)]


def _refusal(output_directory: Path, refused: Sequence[str], problems: Sequence[Problem]) -> list[Problem]:
    jobs = " ".join(f"{OPTION} {name}" for name in refused[:_MAX_SHOWN])
    message = (
        f"evaluates something else than when its episodes ran ({_in_words(refused)}); start a new run in another "
        f"directory, or have these jobs' episodes run anew: --resume {jobs}"
    )
    shown = [Problem(message, file=str(output_directory)), *problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        shown.append(Problem(f"and {len(problems) - _MAX_SHOWN} more differences"))
    return shown


def _in_words(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_SHOWN])
    more = len(names) - _MAX_SHOWN
    return f"job{'s' if len(names) > 1 else ''} {listed}{f' and {more} more' if more > 0 else ''}"
