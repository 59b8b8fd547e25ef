"""Read and write the checkpoints and settings of a training run, each in one atomic step."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.checkpoint import save_checkpoint
from gr00t.model.modeling import Gr00tSmall

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.rsl_rl_checkpoint import read_checkpoint
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_text

TRAINING_FILE = "training.json"
_STATE_FILE = "training_state.pt"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


def checkpoint_directory(output_directory: Path, num_steps: int) -> Path:
    """Return the directory of the checkpoint after a number of steps."""
    return output_directory / f"checkpoint-{num_steps}"


def write_checkpoint(
    output_directory: Path,
    model: Gr00tSmall,
    processor: Gr00tSmallProcessor,
    state: Mapping[str, Any],
    *,
    num_steps: int,
    kept: int,
) -> Path:
    """Write a checkpoint atomically, remove older ones, and return its directory.

    Args:
        output_directory: Directory of the training run.
        model: The weights to evaluate.
        processor: The processor of the model.
        state: The state from which training resumes.
        num_steps: Steps made.
        kept: Number of newest checkpoints to keep.

    Raises:
        StorageError: If it cannot be written.
    """
    target = checkpoint_directory(output_directory, num_steps)
    temporary = target.with_name(f".{target.name}.tmp")
    with storage_errors("write", target):
        shutil.rmtree(temporary, ignore_errors=True)
        save_checkpoint(temporary, model, processor)
        torch.save(dict(state), state_path(temporary))
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        for older in checkpoints(output_directory)[:-kept]:
            shutil.rmtree(older)
    return target


def checkpoints(output_directory: Path) -> list[Path]:
    """Return the checkpoints of a training run, the newest last."""
    found = {
        int(match[1]): path
        for path in output_directory.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name))
    }
    return [found[number] for number in sorted(found)]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the state from which training resumes.

    Raises:
        ConfigError: If the checkpoint has no such state, for example because it was made for evaluation only, or a
            damaged one.
        StorageError: If the system cannot read it.
    """
    path = state_path(checkpoint)
    if not path.is_file():
        raise ConfigError(Problem(f"{checkpoint} holds no {_STATE_FILE} to go on from", key="--resume"))
    return dict(read_checkpoint(path))


def state_path(checkpoint: Path) -> Path:
    """Return the file of a checkpoint from which training resumes."""
    return checkpoint / _STATE_FILE


def write_settings(output_directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a training run.

    Raises:
        StorageError: If it cannot be written.
    """
    write_text(output_directory / TRAINING_FILE, json_text(settings))


def read_settings(output_directory: Path) -> dict[str, Any]:
    """Return the settings of a training run.

    Raises:
        ConfigError: If the directory holds no training run.
    """
    path = output_directory / TRAINING_FILE
    if not path.is_file():
        raise ConfigError(Problem(f"'{output_directory}' holds no {TRAINING_FILE} to go on with", key="--resume"))
    return json.loads(path.read_text(encoding="utf-8"))
