"""The folder of a run: a new one with the date, or exactly the one that was asked for."""

import os
from datetime import datetime
from itertools import count
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.layout import LOCK_FILE, RUN_PLAN_FILE


def make_output_directory(*, output_dir: str | None, output_base_dir: str) -> Path:
    """Make the folder of a run and return its absolute path.

    Args:
        output_dir: The exact folder, which must be missing or empty, or None for a dated one.
        output_base_dir: Where dated folders go.

    Raises:
        ConfigError: If it exists and is not empty, is no folder, or cannot be written.
    """
    if output_dir is not None:
        path = Path(output_dir).absolute()
        _check_missing_or_empty(path)
        _make(path, option="--output_dir")
        return path
    base = Path(output_base_dir).absolute()
    _make(base, option="--output_base_dir")
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in count(1):
        path = base / (stamp if attempt == 1 else f"{stamp}_{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")


def _check_missing_or_empty(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise ConfigError(Problem(f"'{path}' is a link to nothing", key="--output_dir"))
    if path.exists() and not path.is_dir():
        raise ConfigError(Problem(f"'{path}' is a file; name a folder", key="--output_dir"))
    # The lock of a run that died before it began is no reason to refuse.
    if path.is_dir() and any(entry.name != LOCK_FILE for entry in path.iterdir()):
        way_out = "go on with that run by --resume, or " if (path / RUN_PLAN_FILE).is_file() else ""
        message = f"'{path}' is not empty; {way_out}name a new folder, or use --output_base_dir"
        raise ConfigError(Problem(message, key="--output_dir"))


def _make(path: Path, *, option: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(Problem(f"cannot make '{path}': {error.strerror}", key=option)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(Problem(f"'{path}' cannot be written", key=option))
