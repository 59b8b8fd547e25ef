"""End a process that hangs.

No signal handler and no Python thread runs while native code holds the interpreter. Therefore `faulthandler` ends the
process; it waits outside of the interpreter.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import ended_in

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0
_LOOK_S = 0.2
_IDLE_S = 2.0
_EPISODE_MARGIN_S = 60.0


def allowed_silence_s(step_timeout_s: float, episode_timeout_s: float | None) -> float:
    """Return how long a job may go without a finished control step [s], 0 for no limit.

    Args:
        step_timeout_s: What the command line allows [s]; 0 turns the watchdog off.
        episode_timeout_s: How long an episode of the job may take [s]; it is checked only between two steps.
    """
    if step_timeout_s == 0 or episode_timeout_s is None:
        return step_timeout_s
    return episode_timeout_s + _EPISODE_MARGIN_S


class Watchdog:
    """Ends the process, with exit code 1, when a job makes no progress for too long.

    Before that it writes the job's name and the stack of each Python thread into a file. There is one watchdog in a
    process.

    Args:
        path: That file; existing content is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._silence_s = 0.0
        self._file: BinaryIO | None = None
        self._armed_s = 0.0
        self._step_s = 0.0
        self._complaint: str | None = None
        self._announcing = threading.Lock()
        self._is_announcing = False

    @contextmanager
    def watch(self, job: str, *, silence_s: float, missing: str = "has made no control step for") -> Iterator[None]:
        """Watch a job for the length of a ``with`` block, in which `step_finished` is called.

        Args:
            job: Its name, for the file.
            silence_s: How long it may go without a finished step [s], 0 for no limit.
            missing: What it has failed to do in that time, for the file.

        Raises:
            StorageError: If the file cannot be written.
        """
        if silence_s <= 0:
            yield
            return
        complaint = f"job '{job}' {missing} {silence_s:g} s"
        with self._last_words(f"{complaint}:") as file:
            self._file, self._silence_s = file, silence_s
            self._step_s = time.monotonic()
            self._complaint = complaint
            self._begin_to_announce()
            self._arm(file)
            try:
                with ended_in(lambda: self._step_s + self._silence_s - time.monotonic()):
                    yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                self._file = self._complaint = None

    def step_finished(self) -> None:
        """Say that the job goes on."""
        if self._file is None:
            return
        self._step_s = time.monotonic()
        # Arming takes as long as a small network's inference, so it is not done at every step.
        if self._step_s - self._armed_s >= _INTERVAL_S:
            self._arm(self._file)

    def _arm(self, file: BinaryIO) -> None:
        self._armed_s = time.monotonic()
        # The timer may be up to one interval old, and no step may be ended too early.
        faulthandler.dump_traceback_later(self._silence_s + _INTERVAL_S, exit=True, file=file.fileno())

    @contextmanager
    def _last_words(self, first_line: str) -> Iterator[BinaryIO]:
        """Write the job's name into the file in advance, because later may be too late; remove it if all went well."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("ab", buffering=0)
            begin = file.tell()
            file.write(f"{first_line}\n".encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            yield file
        finally:
            # A leftover line in this file must not make a job fail.
            with file, suppress(OSError):
                file.truncate(begin)
                if begin == 0:
                    self._path.unlink()

    def _begin_to_announce(self) -> None:
        """Have a thread look at the time, which goes on to do so for the watches that follow at once.

        One for each watch would take more CPU time than all else that a watch does.
        """
        with self._announcing:
            if not self._is_announcing:
                self._is_announcing = True
                threading.Thread(target=self._announce, daemon=True).start()

    def _announce(self) -> None:
        """Log that the process is about to be ended, if Python can still run; until nothing is watched any more."""
        idle_s, told = 0.0, None
        while True:
            time.sleep(_LOOK_S)
            complaint, late_s = self._complaint, time.monotonic() - self._step_s - self._silence_s
            if complaint is None or late_s < 0:
                told = None
            elif complaint != told:
                told = complaint
                where = "%s; process %d ends in a second, where it stood is in %s"
                _LOG.error(where, complaint, os.getpid(), self._path)
            idle_s = 0.0 if complaint is not None else idle_s + _LOOK_S
            with self._announcing:
                if idle_s > _IDLE_S and self._complaint is None:
                    self._is_announcing = False
                    return
