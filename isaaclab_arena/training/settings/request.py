"""Turn a command line of training into one checked configuration."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isaaclab_arena.config.documents import read_value
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.run_directory import checkpoint_file, numbered_checkpoints
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.documents import (
    default_document,
    file_document,
    merged,
    overrides_document,
    read_training,
    task_document,
)
from isaaclab_arena.training.settings.options import TrainOptions
from isaaclab_arena.training.settings.run_directory import SETTINGS, checkpoint_of_run, newest_run, settings_of
from isaaclab_arena.training.settings.tasks import TASKS

_OF_THE_RUN = ("world_size", "devices", "simulation_devices", "command_lines", "began_with", "versions")
"""Keys of a run's settings that do not belong to its configuration."""


def training_config(
    options: TrainOptions, task: str | None, words: Sequence[str], *, world_size: int
) -> TrainingConfig:
    """Return the configuration. The user's file overrides the task's, and the command line overrides both.

    Args:
        options: The command line's options.
        task: The task; None to resume a run, or if the user's file holds everything.
        words: ``path=value`` of the command line.
        world_size: Number of ranks.

    Raises:
        ConfigError: With every problem.
    """
    documents: list[dict[str, Any]] = []
    source = task or "command line"
    if options.resume is not None:
        before = _settings_before(run_to_resume(options, task, words), options, task)
        documents.append(before)
        task = task or str(before.get("task"))
    elif task is not None:
        documents.append(task_document(task))
    if options.config is not None:
        document = file_document(options.config)
        task = task or document.get("task")
        if not documents and task is not None:
            documents.append(task_document(task))
        documents.append(document)
        source = str(options.config)
    if not documents:
        raise ConfigError(Problem(f"name a task ({', '.join(TASKS.names())}), or a --config", key="TASK"))
    base = merged(default_document(), *map(_with_one_number_of_envs, documents))
    overrides = [options.overrides(), overrides_document(words, base)]
    document = merged(base, *map(_with_one_number_of_envs, overrides))
    config = read_training(document, task=task or str(document.get("environment")), source=source)
    if config.num_envs_total is None:
        return config
    return dataclasses.replace(config, num_envs=envs_of_a_rank(config.num_envs_total, world_size))


def envs_of_a_rank(num_envs_total: int, world_size: int) -> int:
    """Return the number of env slots of each rank.

    Raises:
        ConfigError: If they do not divide evenly; the message names the nearest numbers that do. With unequal numbers
            of env slots, ranks would weigh their samples unequally.
    """
    if num_envs_total % world_size == 0:
        return num_envs_total // world_size
    below = num_envs_total // world_size * world_size
    nearest = [str(number) for number in (below, below + world_size) if number]
    message = f"{num_envs_total} env slots do not divide over {world_size} ranks; use {' or '.join(nearest)}"
    raise ConfigError(Problem(message, key="--num_envs_total"))


def run_to_resume(options: TrainOptions, task: str | None, words: Sequence[str]) -> Path:
    """Return the directory of the run to resume: the named one, or the newest of the experiment.

    Raises:
        ConfigError: If there is none.
    """
    named = options.resume or options.run_directory
    if named:
        return Path(named).absolute()
    if task is None:
        raise ConfigError(Problem("name the run's directory, or the task whose newest run is meant", key="--resume"))
    experiments = [value for path, _, value in (word.partition("=") for word in words) if path == _EXPERIMENT]
    experiment = str(read_value(experiments[-1])) if experiments else task
    return newest_run(
        options.log_root, experiment, pattern=options.load_run or ".*", of_others=options.load_checkpoint is not None
    )


def with_chosen_checkpoint(options: TrainOptions, task: str | None, words: Sequence[str]) -> TrainOptions:
    """Return options that either resume a run or start from a checkpoint, which is then a file.

    rsl_rl's trainers name a run and a checkpoint of it, ``--resume --load_run RUN --load_checkpoint model_100.pt``. The
    newest checkpoint of one of our runs resumes that run exactly; any other checkpoint begins a new run.

    Raises:
        ConfigError: If there is no such run or checkpoint.
    """
    if options.load_checkpoint is None:
        return options
    if options.resume is None or Path(options.load_checkpoint).is_file():
        return dataclasses.replace(options, resume=None, load_run=None, load_checkpoint=_file(options.load_checkpoint))
    run = run_to_resume(options, task, words)
    chosen = checkpoint_of_run(run, options.load_checkpoint)
    newest = max(
        numbered_checkpoints(run).values(), key=lambda path: int(path.stem.removeprefix("model_")), default=None
    )
    if chosen == newest and (run / SETTINGS).is_file():
        return dataclasses.replace(options, resume=str(run), load_run=None, load_checkpoint=None)
    return dataclasses.replace(options, resume=None, load_run=None, load_checkpoint=str(chosen))


def _file(path: str) -> str:
    try:
        return str(checkpoint_file(path, None).absolute())
    except ConfigError as error:
        problems = [dataclasses.replace(problem, key="--load_checkpoint") for problem in error.problems]
        raise ConfigError(problems) from error


_EXPERIMENT = "agent.experiment_name"


def _settings_before(run_directory: Path, options: TrainOptions, task: str | None) -> dict[str, Any]:
    before = settings_of(run_directory)
    if task is not None and before.get("task") != task:
        what = f"'{options.resume}' is a run of '{before.get('task')}', not of '{task}'; leave the task out"
        raise ConfigError(Problem(what, key="--resume"))
    return {key: value for key, value in before.items() if key not in _OF_THE_RUN}


def _with_one_number_of_envs(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the total number of env slots from a document if one that overrides it sets the number of each rank."""
    return {"num_envs_total": None, **document} if "num_envs" in document else document
