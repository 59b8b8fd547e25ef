"""What is started in the interpreter's place: the text of a script, whose last line calls `main`.

Python runs it without site packages, and it imports next to nothing.
"""

import marshal
import os
import signal
import socket
import sys
from typing import NoReturn

_PROGRAMS = (
    "isaaclab_arena.", "isaaclab_arena_gr00t.", "eval_runner", "torch.distributed.run", "gr00t.",
    "benchmarks.", "tests.distributed.", "tests.training.", "tests.gr00t.", "pytest",
)  # fmt: skip
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(interpreter: str, address: str, at_start: dict[str, str | None]) -> NoReturn:
    """Have a program run by the server, and end as it does; become the interpreter for everything else.

    Args:
        interpreter: The usual one.
        address: Of the server's socket.
        at_start: Variables that an interpreter reads when it starts, as they were when the server did.
    """
    options = [word for word in sys.argv[1:3] if word == "-u"]
    words = sys.argv[1 + len(options) :]
    is_module = len(words) > 1 and words[0] == "-m" and words[1].startswith(_PROGRAMS)
    is_script = bool(words) and (words[0].endswith(".py") or os.path.isfile(f"{words[0]}/__main__.py"))  # noqa: PTH113  pathlib loads slowly
    is_program = is_module or is_script
    if not is_program or any(os.environ.get(name) != value for name, value in at_start.items()):
        _become(interpreter)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:
        _become(interpreter)
    # A signal that comes while the request is on its way waits until there is a program to hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    ignored = [int(number) for number in _PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    for number in _PASSED_ON:
        signal.signal(number, lambda given, _: server.send(bytes([given])))
    descriptors = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_inherited(number)]  # noqa: PTH208  likewise
    umask = os.umask(0)
    os.umask(umask)
    directory = os.getcwd()  # noqa: PTH109  likewise
    asked = (words[is_module:], bool(options), dict(os.environ), directory, umask, ignored, descriptors, os.getppid())
    request = marshal.dumps(asked)
    socket.send_fds(server, [len(request).to_bytes(8, "big")], descriptors)
    server.sendall(request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _end_like(server.recv(4))


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # what the directory was listed with is closed by now
        return False


def _end_like(answer: bytes) -> NoReturn:
    """End as the program did; without an answer it is not waited for."""
    code = int.from_bytes(answer, "big", signed=True) if answer else 70
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _become(interpreter: str) -> NoReturn:
    os.execv(interpreter, [interpreter, *sys.argv[1:]])
