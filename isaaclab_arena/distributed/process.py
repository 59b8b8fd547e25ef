"""What a rank's process arranges for itself: threads, and not outliving its launcher."""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch

_PR_SET_PDEATHSIG = 1
_LOOK_INTERVAL_S = 0.2
_GRACE_S = 3.5
_INIT = 1


def limit_threads(num_threads: int | None = None) -> None:
    """Let torch use this many threads in an operation; one unless told otherwise.

    One is right for ranks that share a machine, and it keeps results the same bits on machines with any number of
    cores.
    """
    torch.set_num_threads(1 if num_threads is None else num_threads)


def die_with_parent(sent_signal: signal.Signals = signal.SIGTERM, *, grace_s: float = _GRACE_S) -> bool:
    """Ask the kernel to send this process a signal when its parent dies, and soon after leave in any case.

    A launcher that is killed would otherwise leave ranks behind that go on writing while the user starts again. On
    Linux only. A thread of this process sees to the leaving, so native code that never lets Python run delays it.

    Args:
        sent_signal: The signal.
        grace_s: How long the process may go on after its parent's death [s]; then it ends on the spot, with exit code
            128 + the signal's number, whatever it is doing.

    Returns:
        Whether it is arranged.
    """
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    arranged = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sent_signal), 0, 0, 0) == 0
    # The parent may have died before that took effect, and then no signal ever comes.
    if os.getppid() != parent or _takes_in_orphans(parent):
        os.kill(os.getpid(), sent_signal)
    threading.Thread(target=_leave_after, args=(parent, grace_s, 128 + sent_signal), daemon=True).start()
    return arranged


def _takes_in_orphans(pid: int) -> bool:
    """Whether a process is what orphans get for a parent, and not a launcher, which is always a Python program."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return False
    return (pid == _INIT or name == "systemd") and not (b"python" in command or b"torchrun" in command)


def _leave_after(parent: int, grace_s: float, exit_code: int) -> None:
    launcher_was_there = not _takes_in_orphans(parent)
    while launcher_was_there and os.getppid() == parent:
        time.sleep(_LOOK_INTERVAL_S)
    time.sleep(grace_s)
    # No clean-up: what the main thread is doing may never end. Files are whole at any moment.
    os._exit(exit_code)


def process_start_ticks(pid: int) -> int | None:
    """Return when a process of this machine started [clock ticks since boot], None if it is not running.

    Number and start time together name a process even after its number was used again. A process that has ended
    and is only waiting for its parent to notice is not running.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may hold blanks and parentheses itself.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


def command_of_parent() -> list[str] | None:
    """Return the command line of the process that started this one, None where the system does not tell."""
    try:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return None
    return [os.fsdecode(word) for word in command.split(b"\0")[:-1]] or None


def process_age_s() -> float | None:
    """Return how long ago this process was started, to a hundredth [s]; None where the system does not tell."""
    ticks = process_start_ticks(os.getpid())
    if ticks is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def process_is_running(pid: int, start_ticks: int | None) -> bool:
    """Whether the process of this machine that had this number and start time still runs.

    Args:
        pid: Its number.
        start_ticks: Its `process_start_ticks`, None where the system does not tell; then the number alone counts.
    """
    if start_ticks is not None:
        return process_start_ticks(pid) == start_ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def machine_identity() -> str:
    """Return what is equal for two processes exactly where their process numbers can be compared."""
    parts = [socket.gethostname()]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text(encoding="ascii").strip())
        except OSError:
            parts.append("")
    return "/".join(parts)


def leave_process(code: int) -> NoReturn:
    """End this process at once, with what it had to say written out.

    For processes in which gradients went through a process group: when Python takes such a group apart, at the end,
    it may wait for gloo's threads while they wait for Python's lock, for ever (torch 2.13).
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A reader that has gone is no reason to stay.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def leave_process_on_error() -> None:
    """Make an error that nobody catches end this process as `leave_process` does, after its traceback."""

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        leave_process(1)

    sys.excepthook = leave
