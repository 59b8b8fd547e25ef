"""Find the training step of a swept checkpoint, which is the axis of a learning curve. Pure functions."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_CHECKPOINT_KEY = re.compile(r"checkpoint_step|policy_config_dict\.(.*\.)?[^.]*(checkpoint|model)[^.]*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def checkpoint_step(swept: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the swept key that names a checkpoint, and the training step of its value; None where none does.

    ``checkpoint_step`` does, the key of a job whose entry says ``checkpoints``, and so does a key of
    ``policy_config_dict`` whose name holds ``checkpoint`` or ``model``. The step is its value where that is a whole
    number (``checkpoint_step: 2000``), else the last number of the last part of a path that has one: 2000 for
    ``runs/a1/model_2000.pt`` and for ``checkpoints/002000/pretrained_model``.

    Args:
        swept: The dotted keys that a sweep gave a job a value for, with that value.
    """
    for key, value in swept.items():
        if _CHECKPOINT_KEY.fullmatch(key) is None:
            continue
        step = value if type(value) is int else _last_number(value) if isinstance(value, str) else None
        if step is not None:
            return key, step
    return None


def series_name(environment: str, swept: Mapping[str, Any], checkpoint_key: str) -> str:
    """Return what jobs that differ in nothing but their checkpoint have in common: ``reach, seed=1``.

    Args:
        environment: The environment of the job.
        swept: See `checkpoint_step`.
        checkpoint_key: The key to leave out.
    """
    others = [f"{key.rpartition('.')[2]}={value}" for key, value in swept.items() if key != checkpoint_key]
    return ", ".join([environment, *others])


def _last_number(path: str) -> int | None:
    for part in reversed(PurePath(path).parts):
        numbers = _NUMBER.findall(part)
        if numbers:
            return int(numbers[-1])
    return None
