"""The directories of training runs, and the settings in them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.models.rsl_rl_checkpoint import numbered_checkpoints
from isaaclab_arena.nested import value_at
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.training.settings.config import TrainingConfig, document_of

# Make and find the directories of training runs, and read their settings.

SETTINGS = Path("params") / "train.yaml"


def new_run_directory(log_root: Path, experiment: str, run_name: str) -> Path:
    """Make a run's directory ``<log_root>/<experiment>/<time>[_<run_name>]``; StorageError if that fails."""
    directory = log_root / experiment
    with storage_errors("make a directory in", directory):
        directory.mkdir(parents=True, exist_ok=True)
        return make_dated_directory(directory, suffix=f"_{run_name}" if run_name else "").absolute()


def newest_run(log_root: Path, experiment: str, *, pattern: str = ".*", of_others: bool = False) -> Path:
    """Return an experiment's newest run with a checkpoint; ConfigError if none matches `pattern`."""
    directory = log_root / experiment
    runs = {path.name: path for path in {path.parent for path in directory.glob("*/model_*.pt")}}
    # Runs of other trainers have no settings file. The pattern, as rsl_rl's ``load_run``, matches the begin of a name.
    if not of_others:
        runs = {name: path for name, path in runs.items() if (path / SETTINGS).is_file()}
    found = _newest_match(runs, pattern, key="--load_run")
    if found is None:
        which = "" if pattern == ".*" else f" whose name matches '{pattern}'"
        raise ConfigError(Problem(f"there is no run in {directory}{which} to go on with", key="--resume"))
    return found.absolute()


def checkpoint_of_run(run_directory: Path, name: str) -> Path:
    """Return a checkpoint of a run, by file name, number or regular expression; ConfigError if there is none."""
    numbered = {path.name: path for path in numbered_checkpoints(run_directory).values()}
    others = {path.name: path for path in run_directory.glob("*.pt")}
    found = (
        numbered.get(f"model_{name}.pt") or others.get(name) or _newest_match(numbered, name, key="--load_checkpoint")
    )
    if found is None:
        held = ", ".join(numbered) or "none"
        message = f"there is no '{name}' in '{run_directory}'; its checkpoints are {held}"
        raise ConfigError(Problem(message, key="--load_checkpoint"))
    return found


def _newest_match(paths: Mapping[str, Path], pattern: str, *, key: str) -> Path | None:
    try:
        matching = [name for name in paths if re.match(pattern, name)]
    except re.error as error:
        raise ConfigError(Problem(f"'{pattern}' is no regular expression: {error}", key=key)) from error
    # Runs are named by time, and checkpoints by iteration.
    newest = max(matching, key=lambda name: (len(name) if name.startswith("model_") else 0, name), default=None)
    return None if newest is None else paths[newest]


def settings_of(run_directory: Path) -> dict[str, object]:
    """Return the settings of a run; ConfigError if the directory is not that of a training run."""
    path = run_directory / SETTINGS
    if not path.is_file():
        message = f"'{run_directory}' holds no training run: there is no {SETTINGS}"
        if any(run_directory.glob("model_*.pt")):
            message += "; --load_checkpoint begins a new run with the weights of another trainer's checkpoint"
        raise ConfigError(Problem(message, key="--resume"))
    settings = read_document(path)
    if not isinstance(settings, dict):
        raise ConfigError(Problem("holds no settings of a training run", file=str(path)))
    return settings


# Write the settings of the agent and the environment beside a run's checkpoints, for other programs.

SCHEMA_VERSION = 1
_OWN = "isaaclab_arena"


def write_settings(
    run_directory: Path,
    config: TrainingConfig,
    *,
    observation_terms: Mapping[str, tuple[str, ...]],
    devices: tuple[str, ...],
    simulation_devices: tuple[str, ...],
    command_line: tuple[str, ...],
    began_with: str | None,
) -> None:
    """Write ``params/agent.yaml`` and ``env.yaml`` like Isaac Lab and mjlab, and ``train.yaml``; StorageError."""
    # Terms are in the order of the networks' input. A rank simulates on the CPU with MuJoCo, on a GPU with MuJoCo-Warp.
    # ``began_with`` is the source of the first weights, None for random weights or a resumed run.
    document, terms = document_of(config), {group: list(names) for group, names in observation_terms.items()}
    agent = {**document["agent"], "experiment_name": config.experiment_name, "observation_terms": terms}
    environment = {"environment": config.environment, "num_envs": config.num_envs, **document["env"]}
    run = {
        **document,
        "world_size": len(devices),
        "devices": list(devices),
        "simulation_devices": list(simulation_devices),
        **_history(run_directory, began_with, " ".join(command_line)),
        "versions": training_versions(),
    }
    for name, content in {"agent": agent, "env": environment, "train": run}.items():
        path = run_directory / "params" / f"{name}.yaml"
        write_text(path, yaml.safe_dump(content, sort_keys=False, width=120), overwrite=True)


def _history(run_directory: Path, began_with: str | None, command_line: str) -> dict[str, Any]:
    """Return the source of the first weights and all command lines, with those of the run's earlier settings."""
    before = settings_of(run_directory) if (run_directory / SETTINGS).is_file() else {}
    typed = before.get("command_lines")
    return {
        "began_with": began_with or before.get("began_with"),
        "command_lines": [*(map(str, typed) if isinstance(typed, list) else ()), command_line],
    }


def checkpoint_infos(config: TrainingConfig, *, iterations: int, env_steps: int, world_size: int) -> dict[str, Any]:
    """Return the metadata of a checkpoint for rsl_rl's key ``infos``."""
    return {
        _OWN: {
            "schema_version": SCHEMA_VERSION,
            "iterations": iterations,
            "env_steps": env_steps,
            "world_size": world_size,
            "config": document_of(config),
            "versions": training_versions(),
        }
    }


def env_steps_of(learned: Mapping[str, Any]) -> int | None:
    """Return the control steps that a checkpoint was trained for, None if it does not record them."""
    env_steps = value_at(learned, ("infos", _OWN, "env_steps"))
    return None if env_steps is None else int(env_steps)


def learning_rate_before(learned: Mapping[str, Any]) -> float | None:
    """Return the configured learning rate of a checkpoint's training, None if it does not record it."""
    found = value_at(learned, ("infos", _OWN, "config", "agent", "algorithm", "learning_rate"))
    return found if isinstance(found, float) else None


def training_versions() -> dict[str, str]:
    """Return the versions of all software that can influence training."""
    return versions(more=("rsl-rl-lib", "tensordict"))
