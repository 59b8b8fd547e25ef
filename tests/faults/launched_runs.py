"""The small run under torchrun, its processes, and ways to end them."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.end_to_end.launching import TORCHRUN, start
from tests.faults.small_run import DIARY

_MARK = "ARENA_TEST_MARK"


class LaunchedRun:
    """A run of the small jobs on some ranks; whatever is left of it is killed when the ``with`` block ends."""

    def __init__(self, *arguments: object, ranks: int, diary: Path, log: Path) -> None:
        self._mark = uuid.uuid4().hex
        self.log = log
        launcher = [*TORCHRUN, "--standalone", f"--nproc_per_node={ranks}", "-m", "tests.faults.small_run"]
        variables = {_MARK: self._mark, DIARY: str(diary)}
        self.launcher = start([*launcher, *map(str, arguments)], log, extra=variables, fresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pid in self.living():
            kill(pid)
        self.launcher.wait()

    def living(self) -> list[int]:
        """Return the processes that are left of it: launcher, ranks, and whatever they started."""
        return [pid for pid, _ in self._processes()]

    def pid_of(self, rank: int) -> int | None:
        """Return the process of a rank, None if there is none."""
        ranks = (pid for pid, variables in self._processes() if f"RANK={rank}" in variables)
        # A rank may have started programs of its own, later than itself.
        return min(ranks, default=None)

    def wait(self, timeout_s: float = 120.0) -> int:
        """Wait for its end and return the launcher's exit code."""
        return self.launcher.wait(timeout=timeout_s)

    def wait_until_gone(self, timeout_s: float) -> list[int]:
        """Wait until none of its processes is left, and return those that are after that time."""
        deadline = time.monotonic() + timeout_s
        while (living := self.living()) and time.monotonic() < deadline:
            self.launcher.poll()
            time.sleep(0.05)
        return living

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                variables = _variables(entry)
                if f"{_MARK}={self._mark}" in variables:
                    yield int(entry.name), variables


def kill(pid: int | None, sent_signal: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended by itself."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, sent_signal)


def _variables(process: Path) -> list[str]:
    # A process that has ended and waits for its parent to notice has none.
    try:
        return (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []
