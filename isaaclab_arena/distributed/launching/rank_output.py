"""Write the output of each rank on this machine into a file, and show rank 0's in the launcher's terminal too."""

import logging
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from isaaclab_arena.paths import make_dated_directory

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 16
_LOOK_INTERVAL_S = 0.2
_MOST_KEPT = 1 << 20
_LAST_LINES = 60
_STDOUT, _STDERR = "stdout", "stderr"


@dataclass(kw_only=True)
class _Rank:
    """One rank's output.

    Attributes:
        early: Output from before the log directory existed; None once it exists, or if there will be none.
        file: Its log file.
        unseen: Its last lines, as far as they were not shown.
        begun: The incomplete last line of each stream.
    """

    early: bytearray | None = field(default_factory=bytearray)
    file: BinaryIO | None = None
    unseen: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    begun: dict[str, bytes] = field(default_factory=lambda: {_STDOUT: b"", _STDERR: b""})


class RankOutput(LogsSpecs):
    """Reads the output of the ranks for as long as they run.

    Rank 0's output is passed on immediately, stdout to stdout and stderr to stderr. Of the other ranks only logged
    warnings and errors are shown.

    Args:
        num_ranks: Number of ranks, all on this machine.
        find_directory: Returns the directory for the log files, or None while it is unknown; called until it is known.
        wants_files: Whether to write log files.
    """

    def __init__(self, num_ranks: int, *, find_directory: Callable[[], Path | None], wants_files: bool) -> None:
        super().__init__()
        self.directory: Path | None = None
        self._find_directory = find_directory
        self._ranks = [_Rank(early=bytearray() if wants_files else None) for _ in range(num_ranks)]
        self._waits_for_directory = wants_files
        self._paths: dict[str, dict[int, str]] = {_STDOUT: {}, _STDERR: {}}
        self._selector = selectors.DefaultSelector()
        self._write_ends: list[int] = []
        self._screens = {_STDOUT: _screen(sys.stdout), _STDERR: _screen(sys.stderr)}
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._take_in, name="rank-output", daemon=True)
        for rank in range(num_ranks):
            for stream in (_STDOUT, _STDERR):
                self._open_pipe(rank, stream)

    @property
    def root_log_dir(self) -> str:
        """The directory of the log files, an empty text while there is none."""
        return str(self.directory or "")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the output destinations of each rank; torch calls this."""
        return LogsDest(
            stdouts=self._paths[_STDOUT],
            stderrs=self._paths[_STDERR],
            # torch reads these after a rank has ended, for a report that is not shown.
            error_files=dict.fromkeys(envs, os.devnull),
        )

    def start(self) -> None:
        """Begin to read the output of the ranks."""
        self._thread.start()

    def finish(self) -> None:
        """Read the remaining output, and close the files. Does not wait for processes that a rank left behind."""
        self._finishing.set()
        self._thread.join()
        for descriptor in self._write_ends:
            os.close(descriptor)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        for state in self._ranks:
            if state.file is not None:
                state.file.close()

    def last_unseen_lines(self, rank: int) -> list[str]:
        """Return the last lines of a rank that were not shown, in order."""
        return [line.decode(errors="replace") for line in list(self._ranks[rank].unseen)]

    def file_of(self, rank: int) -> Path | None:
        """Return a rank's log file, None if there is none."""
        return None if self.directory is None else self.directory / f"rank{rank}.log"

    def _open_pipe(self, rank: int, stream: str) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._selector.register(read_end, selectors.EVENT_READ, (rank, stream))
        self._write_ends.append(write_end)
        # torch expects a file name; in this process this name is the writing end of the pipe.
        self._paths[stream][rank] = f"/dev/fd/{write_end}"

    def _take_in(self) -> None:
        while True:
            finishing = self._finishing.is_set()
            self._look_for_directory()
            ready = self._selector.select(timeout=0.0 if finishing else _LOOK_INTERVAL_S)
            for key, _ in ready:
                rank, stream = key.data
                self._receive(rank, stream, os.read(key.fd, _CHUNK))
            if finishing and not ready:
                return

    def _receive(self, rank: int, stream: str, chunk: bytes) -> None:
        state = self._ranks[rank]
        if state.file is not None:
            self._write(state, chunk)
        elif state.early is not None:
            state.early += chunk
            del state.early[:-_MOST_KEPT]
        if rank == 0:
            self._show(stream, chunk)
            return
        *lines, state.begun[stream] = (state.begun[stream] + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"[rank %d] " % rank):
                self._show(stream, line + b"\n")
            else:
                state.unseen.append(line)

    def _show(self, stream: str, chunk: bytes) -> None:
        screen = self._screens[stream]
        if screen is None:
            return
        try:
            screen.write(chunk)
            screen.flush()
        except (OSError, ValueError):
            # The reader has closed the stream. The ranks go on, and their files have the whole output.
            self._screens[stream] = None

    def _look_for_directory(self) -> None:
        if not self._waits_for_directory:
            return
        place = self._find_directory()
        if place is None:
            return
        self._waits_for_directory = False
        try:
            # Several launches may share the directory.
            place.mkdir(parents=True, exist_ok=True)
            self.directory = make_dated_directory(place)
            for rank, state in enumerate(self._ranks):
                state.file = (self.directory / f"rank{rank}.log").open("wb", buffering=0)
                self._write(state, bytes(state.early or b""))
        except OSError as error:
            _LOG.warning("cannot write what ranks say to %s: %s", place, error.strerror)
        for state in self._ranks:
            state.early = None

    def _write(self, state: _Rank, chunk: bytes) -> None:
        if state.file is None:
            return
        try:
            state.file.write(chunk)
        except OSError as error:
            _LOG.warning("cannot write %s: %s", state.file.name, error.strerror)
            state.file = None


def _screen(stream: object) -> BinaryIO | None:
    """Return the bytes behind a text stream, None for a process that was started without one."""
    return getattr(stream, "buffer", None)
