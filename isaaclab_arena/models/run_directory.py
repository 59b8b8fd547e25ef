"""The checkpoints in a training's directory: what they are called, and which of them is meant."""

import re
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import not_a_plain_file

BEST = "best"
LATEST = "latest"
BEST_FILE = "model_best.pt"

_NUMBERED = re.compile(r"model_(\d{1,12})\.pt")


def model_path(directory: Path, iterations: int) -> Path:
    """Return the checkpoint after `iterations`; rsl_rl's own ``load`` continues with the next iteration."""
    return directory / f"model_{iterations}.pt"


def numbered_checkpoints(directory: Path) -> dict[int, Path]:
    """Return the checkpoints of a training by the iterations done, the newest last."""
    found = {int(match[1]): path for path in directory.glob("model_*.pt") if (match := _NUMBERED.fullmatch(path.name))}
    return {number: found[number] for number in sorted(found)}


def checkpoint_file(path: str, choice: int | str | None) -> Path:
    """Return a file, or the checkpoint chosen in a directory; ConfigError, with ``key``, if there is none."""
    # ``choice`` is ``best``, ``latest`` or an iteration; None for the best if there is one, otherwise the latest.
    file = _named_file(path, choice)
    wrong = not_a_plain_file(file)
    if wrong is not None:
        raise ConfigError(Problem(f"'{file}': {wrong}", key="checkpoint_path"))
    return file


def _named_file(path: str, choice: int | str | None) -> Path:
    found = Path(path)
    if found.is_dir():
        return _chosen(found, choice)
    if found.exists():
        if choice is not None:
            message = f"'{path}' is a file already; leave this out, or name its directory as checkpoint_path"
            raise ConfigError(Problem(message, key="checkpoint"))
        return found
    message = f"'{path}' does not exist, and is looked for in the working directory"
    raise ConfigError(Problem(message, key="checkpoint_path"))


def _chosen(directory: Path, choice: int | str | None) -> Path:
    numbered = numbered_checkpoints(directory)
    best = directory / BEST_FILE
    if choice == BEST or (choice is None and best.is_file()):
        if not best.is_file():
            message = f"there is no {BEST_FILE} in '{directory}'; its checkpoints are {_in_words(numbered)}"
            raise ConfigError(Problem(message, key="checkpoint"))
        return best
    # Without a best checkpoint, None means the latest.
    if choice in {None, LATEST}:
        if not numbered:
            raise ConfigError(Problem(f"'{directory}' {_without_checkpoints(directory)}", key="checkpoint_path"))
        return numbered[max(numbered)]
    if isinstance(choice, bool) or not str(choice).isdecimal():
        message = f"must be {BEST}, {LATEST} or the number of an iteration, got {choice!r}"
        raise ConfigError(Problem(message, key="checkpoint"))
    if int(choice or 0) not in numbered:
        message = f"there is no model_{choice}.pt in '{directory}'; its checkpoints are {_in_words(numbered)}"
        raise ConfigError(Problem(message, key="checkpoint"))
    return numbered[int(choice or 0)]


def _without_checkpoints(directory: Path) -> str:
    runs = sorted(run.name for run in directory.iterdir() if run.is_dir() and any(run.glob("model_*.pt")))
    if runs:
        return f"holds no model_<iteration>.pt but {len(runs)} trainings; name one of them, such as {runs[-1]}"
    exported = sorted(file.name for file in directory.iterdir() if file.suffix in {".pt", ".onnx"})
    if exported:
        return f"holds no model_<iteration>.pt; name a file of it: {', '.join(exported)}"
    return "holds no model_<iteration>.pt"


def _in_words(numbered: dict[int, Path]) -> str:
    return ", ".join(str(number) for number in numbered) or "none"
