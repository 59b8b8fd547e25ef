"""The directory of a run: a new one with the date, or exactly the one that was asked for; and its lock."""

import errno
import fcntl
import logging
import os
import re
from contextlib import AbstractContextManager
from fnmatch import translate
from pathlib import Path
from typing import Self

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.layout import LOCK_FILE, RUN_PLAN_FILE

_LOG = logging.getLogger(__name__)

PROBE_PATTERN = ".seen_by_all.*.tmp"
"""Names of the files by which ranks find out whether they share a directory; one stays if rank 0 dies meanwhile."""

_LEFT_BEFORE_BEGINNING = re.compile(
    rf"{re.escape(LOCK_FILE)}|{translate(PROBE_PATTERN)}|\.{re.escape(RUN_PLAN_FILE)}\..+\.tmp"
)


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
    return not path.exists() or (
        path.is_dir() and all(_LEFT_BEFORE_BEGINNING.fullmatch(entry.name) for entry in path.iterdir())
    )


def clear_unbegun(path: Path) -> None:
    """Remove the files of a run that died before its plan was written. The caller holds the run's lock exclusively."""
    for entry in path.iterdir():
        if entry.name != LOCK_FILE and _LEFT_BEFORE_BEGINNING.fullmatch(entry.name):
            with storage_errors("remove", entry):
                entry.unlink(missing_ok=True)


# One run at a time in a directory: the system releases the lock if its holders die.
#
# The rank that sets a run up holds the lock alone during repair and planning. Then all ranks of the run share it until
# they exit, so no other run can begin while one of them may still write.


class RunLock(AbstractContextManager["RunLock"]):
    """The lock of one existing output directory, held by this process."""

    def __init__(self, output_directory: Path) -> None:
        self._path = output_directory / LOCK_FILE
        with storage_errors("make", self._path):
            # Child processes must not keep the lock after this process has ended, hence O_CLOEXEC. A child that
            # inherits the descriptor on purpose holds the lock as long as it runs.
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hold(self, *, alone: bool) -> Self:
        """Hold the lock alone, or share it with this run's ranks; either may follow. ConfigError if it is taken."""
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # The error is not from another run: this file system has no locks, and reports that in one of several
                # ways.
                cannot = "cannot be locked on this file system"
                _LOG.warning("%s %s (%s): never start two runs in one directory", self._path, cannot, error.strerror)
                return self
            message = "another run is at work in this directory; wait until it has ended, or choose another one"
            raise ConfigError(Problem(message, file=str(self._path.parent))) from error
        return self

    def release(self, *exception: object) -> None:
        """Release the lock. May be called more than once; the end of the process releases it too."""
        del exception
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __exit__ = release
