"""What a rank's process arranges for itself: threads, and not outliving its launcher."""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

import torch

_PR_SET_PDEATHSIG = 1


def limit_threads(num_threads: int | None = None) -> None:
    """Let torch use this many threads in an operation; one unless told otherwise.

    One is right for ranks that share a machine, and it keeps results the same bits on machines with any number of
    cores.
    """
    torch.set_num_threads(1 if num_threads is None else num_threads)


def die_with_parent(sent_signal: signal.Signals = signal.SIGTERM) -> bool:
    """Ask the kernel to send this process a signal when its parent dies; on Linux only.

    A launcher that is killed would otherwise leave ranks behind that go on writing while the user starts again.

    Returns:
        Whether it is arranged.
    """
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    arranged = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sent_signal), 0, 0, 0) == 0
    # The parent may have died between the two calls, and then no signal ever comes.
    if arranged and os.getppid() != parent:
        os.kill(os.getpid(), sent_signal)
    return arranged


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
