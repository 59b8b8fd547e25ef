"""Set up a rank's process: its threads, and its end when the launcher dies."""

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
    """Set torch's number of threads per operation; None for one."""
    # One thread suits ranks that share a machine, and it keeps results bitwise equal for any number of cores.
    torch.set_num_threads(1 if num_threads is None else num_threads)


def die_with_parent(sent_signal: signal.Signals = signal.SIGTERM, *, grace_s: float = _GRACE_S) -> bool:
    """Signal this process when its parent dies, and end it `grace_s` [s] later; False if not supported."""
    # Otherwise the ranks of a killed launcher would continue writing while the user starts again. Only Linux can
    # signal.
    # A thread ends the process immediately after ``grace_s``, with exit code 128 + the signal's number. Native code
    # that holds Python's lock delays that.
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    arranged = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sent_signal), 0, 0, 0) == 0
    # The parent may have died before the call took effect; then no signal ever comes.
    if os.getppid() != parent or _takes_in_orphans(parent):
        os.kill(os.getpid(), sent_signal)
    threading.Thread(target=_leave_after, args=(parent, grace_s, 128 + sent_signal), daemon=True).start()
    return arranged


def _takes_in_orphans(pid: int) -> bool:
    """True if a process adopts orphans and is no launcher; a launcher is always a Python program."""
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
    # No clean-up, because the main thread may never return. Files are consistent at any moment.
    os._exit(exit_code)


def process_start_ticks(pid: int) -> int | None:
    """Return the start of a process [clock ticks since boot], None if it is not running (or a zombie)."""
    # Number and start time together identify a process even after its number was used again.
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may contain blanks and parentheses.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


def command_of_parent() -> list[str] | None:
    """Return the command line of the process that started this one, None if the system does not show it."""
    try:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return None
    return [os.fsdecode(word) for word in command.split(b"\0")[:-1]] or None


def process_age_s() -> float | None:
    """Return the age of this process, to a hundredth [s]; None if the system does not show it."""
    ticks = process_start_ticks(os.getpid())
    if ticks is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def process_is_running(pid: int, start_ticks: int | None) -> bool:
    """True if the process with this number and start time still runs; None compares only the number."""
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
    """Return an identity of this machine; process numbers are comparable only if it is equal."""
    parts = [socket.gethostname()]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text(encoding="ascii").strip())
        except OSError:
            parts.append("")
    return "/".join(parts)


def leave_process(code: int) -> NoReturn:
    """Flush the output streams and end this process at once."""
    # For processes in which gradients went through a process group: at exit Python may wait for ever for gloo's
    # threads, which wait for Python's lock (torch 2.13).
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe must not prevent the exit.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def leave_process_on_error() -> None:
    """Make an uncaught error end this process as `leave_process` does, after its traceback."""

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        leave_process(1)

    sys.excepthook = leave
