"""Recover a lost or damaged ``run.json`` from its copy or from other files, or report what is known of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.storage.hdf5.episodes import list_episodes, read_attributes
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, RUN_PLAN_FILE, SET_ASIDE_DIRECTORY
from isaaclab_arena.storage.recordings import datasets, episode_files
from isaaclab_arena.storage.recovery.recorded_copies import recorded_config_hash
from isaaclab_arena.storage.recovery.set_aside import move_aside
from isaaclab_arena.storage.run.attempts import attempt_numbers
from isaaclab_arena.storage.run.run_lock import RunLock
from isaaclab_arena.storage.run.run_plan import RunPlan, plan_copy_path, read_plan_copy, read_run_plan, write_run_plan


@dataclass(frozen=True, kw_only=True)
class RecoveredPlan:
    """A recovered plan.

    Attributes:
        plan: The plan.
        is_made_anew: Whether it was made anew instead of copied.
    """

    plan: RunPlan
    is_made_anew: bool


def recover_plan(output_directory: Path, rebuild: Callable[[Path], RunPlan]) -> RecoveredPlan:
    """Write ``run.json`` again, from its copy or anew; a damaged one is set aside.

    Args:
        output_directory: Directory of the run.
        rebuild: Makes the plan anew from other files of the run and from its job file, if there is no copy.

    Raises:
        ConfigError: If the plan is intact, if another run is at work in the directory, or if there is no copy and
            nothing to make the plan from. In the last case the message names what is missing and what is known of the
            run.
        StorageError: If it cannot be written.
    """
    if not output_directory.is_dir():
        raise ConfigError(Problem(f"there is no directory '{output_directory}'"))
    with RunLock(output_directory).hold_alone():
        if _is_whole(output_directory):
            raise ConfigError(Problem(f"holds a whole {RUN_PLAN_FILE}: nothing is lost", file=str(output_directory)))
        recovered = _copied_or_rebuilt(output_directory, rebuild)
        path = output_directory / RUN_PLAN_FILE
        if path.exists():
            move_aside(path, output_directory / SET_ASIDE_DIRECTORY)
        write_run_plan(output_directory, recovered.plan)
    return recovered


def _copied_or_rebuilt(output_directory: Path, rebuild: Callable[[Path], RunPlan]) -> RecoveredPlan:
    try:
        return RecoveredPlan(plan=_copied(output_directory), is_made_anew=False)
    except ConfigError as no_copy:
        try:
            return RecoveredPlan(plan=rebuild(output_directory), is_made_anew=True)
        except (ConfigError, StorageError) as error:
            missing = error.problems if isinstance(error, ConfigError) else (Problem(str(error)),)
            problems = [*no_copy.problems, *missing, _what_is_known(output_directory)]
            raise ConfigError(problems) from error


def _copied(output_directory: Path) -> RunPlan:
    """Return the plan of the copy, unless a recording was made with another configuration."""
    plan = read_plan_copy(output_directory)
    try:
        hashes = recorded_config_hashes(output_directory)
    except StorageError:
        # Whatever is wrong with a recording, it says nothing of the plan.
        return plan
    if any(found != plan.config_hash for found in hashes.values()):
        message = "is of another run: recordings were made with another configuration"
        raise ConfigError(Problem(message, file=str(plan_copy_path(output_directory))))
    return plan


def _is_whole(output_directory: Path) -> bool:
    try:
        read_run_plan(output_directory)
    except ConfigError:
        return False
    return True


def recorded_config_hashes(output_directory: Path) -> dict[str, str]:
    """Return the configuration hash of the first recording of each job, as far as recordings have one.

    Raises:
        StorageError: If a recording cannot be read.
    """
    found = {}
    for job in _jobs_with_results(output_directory):
        said = _recorded_config_hash(output_directory / job, job)
        if said is not None:
            found[job] = said
    return found


def _recorded_config_hash(directory: Path, job: str) -> str | None:
    for path in [*datasets(directory, job), *(path for path, _ in episode_files(directory))]:
        for index in list_episodes(path)[:1]:
            return recorded_config_hash(read_attributes(path, index).get("provenance"))
    return None


def _jobs_with_results(output_directory: Path) -> list[str]:
    return sorted({path.parent.name for path in output_directory.glob(f"*/{COMMIT_FILE_PATTERN}")})


def _what_is_known(output_directory: Path) -> Problem:
    jobs = _jobs_with_results(output_directory)
    known = f"{len(attempt_numbers(output_directory))} attempts, and results of {len(jobs)} jobs"
    named = f" ({', '.join(jobs[:20])}{', ...' if len(jobs) > 20 else ''})" if jobs else ""
    message = (
        f"{known}{named} are there; what is lost with {RUN_PLAN_FILE} are the options of the jobs, how many episodes "
        "each has, and the options of the command line. If the above cannot be mended, run the job file again in a new "
        "directory; recordings can still be replayed"
    )
    return Problem(message, file=str(output_directory))
