"""Find the checkpoints in a training's directory, and the step of each, by the names that trainings give them."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NAMES = (
    # rsl_rl, Isaac Lab, mjlab and this package.
    ("model_*.pt", re.compile(r"model_(\d{1,12})\.pt")),
    # LeRobot, in the directory of the training or in its `checkpoints`.
    ("checkpoints/*/pretrained_model", re.compile(r"checkpoints/(\d{1,12})/pretrained_model")),
    ("*/pretrained_model", re.compile(r"(\d{1,12})/pretrained_model")),
    # GR00T, and everything else that transformers' Trainer trains.
    ("checkpoint-*", re.compile(r"checkpoint-(\d{1,12})")),
)
_WILDCARDS = "*?["
_TRIES = 5
"""How often to look again where a directory is removed while it is looked through."""
_LAST_NUMBER = re.compile(r"(\d{1,12})(?!.*\d)")


@dataclass(frozen=True, kw_only=True, order=True)
class Checkpoint:
    """A checkpoint of a training.

    Attributes:
        step: Iterations or optimizer steps done, as its name says.
        path: The file or directory that a policy loads.
    """

    step: int
    path: Path


def find_checkpoints(directory: Path, pattern: str | None = None) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a training in the order of their steps, complete or not.

    Args:
        directory: Directory of the training.
        pattern: Glob of the checkpoints below it. The step is the last number in what its wildcards stand for. None
            for the names that rsl_rl, LeRobot and transformers give.
    """
    if pattern is not None:
        named = ((path, _step(path.relative_to(directory), pattern)) for path in _there(directory, pattern))
        return _in_order(Checkpoint(step=step, path=path) for path, step in named if step is not None)
    for names, spelling in _NAMES:
        found = [
            (path, spelling.fullmatch(path.relative_to(directory).as_posix())) for path in _there(directory, names)
        ]
        checkpoints = _in_order(Checkpoint(step=int(match[1]), path=path) for path, match in found if match is not None)
        if checkpoints:
            return checkpoints
    return ()


def _there(directory: Path, names: str) -> list[Path]:
    """Return what lies below a directory by such names, nothing where other things are removed all the time."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return list(directory.glob(names))
    return []


def _step(path: Path, pattern: str) -> int | None:
    wild = [any(sign in part for sign in _WILDCARDS) for part in Path(pattern).parts]
    parts = path.parts
    # With ``**`` nobody knows which parts the wildcards stand for; they begin where the first one does.
    named = [part for part, is_wild in zip(parts, wild, strict=True) if is_wild] if len(parts) == len(wild) else ()
    match = _LAST_NUMBER.search("/".join(named or parts[wild.index(True) if True in wild else 0 :]))
    return None if match is None else int(match[1])


def _in_order(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return checkpoints by step; of two with one step, such as ``model_7.pt`` and ``model_007.pt``, the first."""
    by_step: dict[int, Checkpoint] = {}
    for checkpoint in sorted(checkpoints):
        by_step.setdefault(checkpoint.step, checkpoint)
    return tuple(by_step.values())
