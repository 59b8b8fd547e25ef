"""Write the settings of the agent and the environment beside a run's checkpoints, for other programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.nested import value_at
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.documents import document_of
from isaaclab_arena.training.settings.run_directory import SETTINGS, settings_of

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
    """Write ``params/agent.yaml`` and ``params/env.yaml`` as Isaac Lab and mjlab do, and ``params/train.yaml``.

    Args:
        run_directory: Directory of the training run.
        config: The configuration of the run.
        observation_terms: Each group's terms, in the order of the networks' input.
        devices: Device on which each rank learns, by rank.
        simulation_devices: Device on which each rank simulates: the CPU for MuJoCo, a GPU for MuJoCo-Warp.
        command_line: The command line; earlier command lines of the run are kept.
        began_with: Source of the first weights, None for random weights or a resumed run.

    Raises:
        StorageError: If a file cannot be written.
    """
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
    """Return the source of the first weights and the command lines from a run's settings."""
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
