"""Tell with which checkpoint a training ends, by what it says of itself and by how its checkpoints are called."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models.agent_settings import AGENT_FILE

_OF_RSL_RL = re.compile(r"model_\d+\.pt")
_SETTINGS_OF_OURS = Path("params", "train.yaml")
_SETTINGS_OF_LEROBOT = "train_config.json"
_STATE_OF_TRANSFORMERS = "trainer_state.json"


def last_checkpoint(found: Sequence[Checkpoint], until: int | None = None) -> Checkpoint | None:
    """Return the checkpoint after which a training writes no more, None as long as nothing says that it is there.

    rsl_rl counts iterations from 0, so that after 1,000 of them its last checkpoint is ``model_999.pt``; this package
    calls its own ``model_1000.pt``.

    Args:
        found: The checkpoints of the training in the order of their steps.
        until: The step that is waited for, which rsl_rl's last checkpoint stands for where no file says how many
            iterations there are; None if none is.
    """
    if not found:
        return None
    newest = found[-1]
    if _OF_RSL_RL.fullmatch(newest.path.name):
        is_last = _ends_rsl_rl([each.step for each in found], newest.path.parent, until)
    else:
        is_last = _ends_lerobot(newest) or _ends_transformers(newest)
    return newest if is_last else None


def _ends_rsl_rl(steps: Sequence[int], directory: Path, until: int | None) -> bool:
    settings = _document(directory / AGENT_FILE)
    iterations, interval = _count(settings, "max_iterations"), _count(settings, "save_interval")
    if (directory / _SETTINGS_OF_OURS).is_file():
        return iterations is not None and steps[-1] >= iterations
    if interval is None or iterations is None:
        return until is not None and steps[-1] + 1 == until and _is_between(steps[-1], math.gcd(*steps[:-1]))
    # A run that goes on from another one ends later, and only its last checkpoint comes between two others.
    return (steps[0] == 0 and steps[-1] + 1 >= iterations) or _is_between(steps[-1], interval)


def _is_between(step: int, interval: int) -> bool:
    """Whether a step is none of those after which a training saves as it goes; 0 for an interval that nobody knows."""
    return interval == 0 or step % interval != 0


def _ends_lerobot(newest: Checkpoint) -> bool:
    steps = _count(_document(newest.path / _SETTINGS_OF_LEROBOT), "steps")
    return steps is not None and newest.step >= steps


def _ends_transformers(newest: Checkpoint) -> bool:
    steps = _count(_document(newest.path / _STATE_OF_TRANSFORMERS), "max_steps")
    return steps is not None and newest.step >= steps


def _document(path: Path) -> Mapping[str, Any]:
    """Return what a file of a training says, nothing where there is none or it cannot be read."""
    if not path.is_file():
        return {}
    try:
        document = read_document(path, python_tags=True)
    except ConfigError:
        return {}
    return document if isinstance(document, dict) else {}


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if type(value) is int and value > 0 else None
