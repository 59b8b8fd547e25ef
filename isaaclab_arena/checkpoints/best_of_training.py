"""Find the checkpoint that a training itself calls its best, and its step, in the files that the training wrote."""

import filecmp
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints.finding import find_checkpoints

_BEST_FILE, _SCORE_FILE = "model_best.pt", "model_best.json"
_OF_TRANSFORMERS = re.compile(r"checkpoint-(\d{1,12})")
_STATE_OF_TRANSFORMERS = "trainer_state.json"


def best_of_training(directory: Path) -> tuple[Path, int | None] | None:
    """Return the best checkpoint of a training and its step, None where the training names none.

    This package copies it to ``model_best.pt`` and writes its step beside it; transformers' Trainer names the directory
    in the state that it saves with every checkpoint. The step is None where nobody says it, or where the copy is not
    the checkpoint of that step.

    Args:
        directory: Directory of the training.
    """
    if (directory / _BEST_FILE).exists():
        return directory / _BEST_FILE, _step_of_copy(directory)
    found = find_checkpoints(directory)
    state = _document(found[-1].path / _STATE_OF_TRANSFORMERS) if found else {}
    # It was a path where the training ran; only its name holds here.
    name = re.split(r"[/\\]", str(state.get("best_model_checkpoint")).rstrip("/\\"))[-1]
    match = _OF_TRANSFORMERS.fullmatch(name)
    return None if match is None else (directory / name, int(match[1]))


def _step_of_copy(directory: Path) -> int | None:
    step = _document(directory / _SCORE_FILE).get("iterations")
    if type(step) is not int or step < 0:
        return None
    original = directory / f"model_{step}.pt"
    # A training that is stopped between the two files leaves a score that is not that of the copy.
    is_other = original.is_file() and not filecmp.cmp(original, directory / _BEST_FILE, shallow=False)
    return None if is_other else step


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
