"""One run at a time in a directory: a lock that the system gives back by itself when its holders have died.

The rank that sets a run up holds the lock alone, while it repairs and plans. Then all ranks of the run share it until
they exit, so that nobody else can begin as long as one of them may still write.
"""

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Self

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.layout import LOCK_FILE

_LOG = logging.getLogger(__name__)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class RunLock:
    """The lock of one output directory, as this process holds it.

    Args:
        output_directory: The directory, which exists.

    Raises:
        StorageError: If the lock's file cannot be made.
    """

    def __init__(self, output_directory: Path) -> None:
        self._path = output_directory / LOCK_FILE
        with storage_errors("make", self._path):
            # Programs that this process starts must not keep the lock when it has gone, hence O_CLOEXEC.
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hold_alone(self) -> Self:
        """Take the lock for this process alone.

        Raises:
            ConfigError: If another run has it.
        """
        self._take(fcntl.LOCK_EX)
        return self

    def share(self) -> Self:
        """Share the lock with the other ranks of this run, or give up holding it alone.

        Raises:
            ConfigError: If another run has it.
        """
        self._take(fcntl.LOCK_SH)
        return self

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock; a program that is given it holds the lock too, as long as it runs."""
        return self._descriptor

    def release(self) -> None:
        """Give the lock back. May be called more than once; the end of the process does it too."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _take(self, kind: int) -> None:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                # No other run has said so: this is a file system without locks, in one of the ways of saying that.
                _LOG.warning(
                    "%s cannot be locked on this file system (%s): never start two runs in one directory",
                    self._path,
                    error.strerror,
                )
                return
            raise ConfigError(
                Problem(
                    "another run is at work in this directory; wait until it has ended, or choose another one",
                    file=str(self._path.parent),
                )
            ) from error
