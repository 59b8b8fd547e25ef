"""A run's plan that was lost or damaged, brought back from its copy; or what is known of the run without it."""

from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.attempts import attempt_numbers
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, RUN_PLAN_FILE, SET_ASIDE_FOLDER
from isaaclab_arena.storage.run_lock import RunLock
from isaaclab_arena.storage.run_plan import RunPlan, read_plan_copy, read_run_plan, write_run_plan
from isaaclab_arena.storage.set_aside import move_aside


def recover_plan(output_directory: Path) -> RunPlan:
    """Write ``run.json`` again, from its copy; a damaged one is set aside.

    Args:
        output_directory: Folder of the run.

    Raises:
        ConfigError: If nothing is wrong with it, another run is at work in the folder, or there is no copy: then with
            what is known of the run, and what is not.
        StorageError: If it cannot be written.
    """
    if not output_directory.is_dir():
        raise ConfigError(Problem(f"there is no folder '{output_directory}'"))
    with RunLock(output_directory).hold_alone():
        if _is_whole(output_directory):
            raise ConfigError(Problem(f"holds a whole {RUN_PLAN_FILE}: nothing is lost", file=str(output_directory)))
        try:
            plan = read_plan_copy(output_directory)
        except ConfigError as error:
            raise ConfigError([*error.problems, _what_is_known(output_directory)]) from error
        path = output_directory / RUN_PLAN_FILE
        if path.exists():
            move_aside(path, output_directory / SET_ASIDE_FOLDER)
        write_run_plan(output_directory, plan)
    return plan


def _is_whole(output_directory: Path) -> bool:
    try:
        read_run_plan(output_directory)
    except ConfigError:
        return False
    return True


def _what_is_known(output_directory: Path) -> Problem:
    jobs = sorted({path.parent.name for path in output_directory.glob(f"*/{COMMIT_FILE_PATTERN}")})
    known = f"{len(attempt_numbers(output_directory))} attempts, and results of {len(jobs)} jobs"
    named = f" ({', '.join(jobs[:20])}{', ...' if len(jobs) > 20 else ''})" if jobs else ""
    message = (
        f"{known}{named} are there; what is lost with {RUN_PLAN_FILE} are the options of the jobs, how many episodes "
        "each has, and the options of the command line. Run the job file again in a new folder; recordings can still "
        "be replayed"
    )
    return Problem(message, file=str(output_directory))
