"""The directory of a run: a new one with the date, or exactly the one that was asked for."""

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage.disk import storage_errors
from isaaclab_arena.storage.layout import LOCK_FILE, RUN_PLAN_FILE

PROBE_PATTERN = ".seen_by_all.*.tmp"
"""Names of the files by which ranks find out whether they share a directory; one stays if rank 0 dies meanwhile."""

_PLAN_UNDER_WAY = re.compile(rf"\.{re.escape(RUN_PLAN_FILE)}\..+\.tmp")


def make_output_directory(*, output_dir: str | None, output_base_dir: str) -> Path:
    """Make the directory of a run, and return its absolute path."""
    # The exact directory must be missing or empty; None makes a dated one in `output_base_dir`. `ConfigError` if the
    # directory is not empty, not a directory or not writable.
    option = "--output_base_dir" if output_dir is None else "--output_dir"
    path = named_directory(output_base_dir if output_dir is None else output_dir)
    if output_dir is not None:
        if path.is_symlink() and not path.exists():
            raise ConfigError(Problem(f"'{path}' is a link to nothing", key="--output_dir"))
        if path.exists() and not path.is_dir():
            raise ConfigError(Problem(f"'{path}' is a file; name a directory", key="--output_dir"))
        if not holds_no_run(path):
            way_out = "go on with that run by --resume, or " if (path / RUN_PLAN_FILE).is_file() else ""
            message = f"'{path}' is not empty; {way_out}name a new directory, or use --output_base_dir"
            raise ConfigError(Problem(message, key="--output_dir"))

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(Problem(f"cannot make '{path}': {error.strerror}", key=option)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(Problem(f"'{path}' cannot be written", key=option))
    if output_dir is not None:
        return path
    with storage_errors("make a directory in", path):
        return make_dated_directory(path)


def named_directory(name: str) -> Path:
    """Return the absolute path of a user's directory, without making it; ``..`` follows links."""
    path = Path(name)
    return path.resolve() if ".." in path.parts else path.absolute()


def holds_no_run(path: Path) -> bool:
    """Whether a directory is missing, empty, or holds only files of a run that died before it began."""
    return not path.exists() or (path.is_dir() and all(_left_before_beginning(entry) for entry in path.iterdir()))


def clear_unbegun(path: Path) -> None:
    """Remove the files of a run that died before its plan was written. The caller holds the run's lock exclusively."""
    for entry in path.iterdir():
        if entry.name != LOCK_FILE and _left_before_beginning(entry):
            with storage_errors("remove", entry):
                entry.unlink(missing_ok=True)


def _left_before_beginning(entry: Path) -> bool:
    is_probe = fnmatchcase(entry.name, PROBE_PATTERN)
    return entry.name == LOCK_FILE or is_probe or _PLAN_UNDER_WAY.fullmatch(entry.name) is not None
