"""Runs programs in forked children of a process that has imported what they import.

Each program has a keeper as its parent, in the place of the process that started it: the keeper passes signals on,
kills the program when its client is killed, tells the client its exit code, and is gone when the client's parent is.
"""

import atexit
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, NoReturn

from tests.preloaded.warm_up import warm_up

_MAX_DESCRIPTORS = 64


class Program(NamedTuple):
    """What was asked for: a module, or the file of a script, and its arguments, and what its process is to have."""

    words: list[str]
    is_unbuffered: bool
    variables: dict[str, str]
    directory: str
    umask: int
    ignored_signals: list[int]
    descriptors: list[int]
    client_parent: int


def program_to_be(listener: socket.socket) -> Program | None:
    """Serve at a socket until the other end of stdin is closed; return in each child, with what it is to be."""
    with listener:
        # The system collects keepers.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while listener in select.select([0, listener], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _keep(client)
            client.close()
    return None


def listening(path: str) -> socket.socket:
    """Return a socket at which clients may knock before anything is loaded, and say so on stdout."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    return listener


def _keep(client: socket.socket) -> Program:
    """Be a keeper, or return in the child that is to be the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, opened, _, _ = socket.recv_fds(client, 8, _MAX_DESCRIPTORS)
    with client.makefile("rb") as stream:
        program = Program(*marshal.loads(stream.read(int.from_bytes(size, "big"))))
    pid = os.fork()
    if pid == 0:
        client.close()
        _take_over(program, opened)
        return program
    for descriptor in opened:
        os.close(descriptor)
    _watch(client, pid, program.client_parent)
    os._exit(0)


def _watch(client: socket.socket, pid: int, client_parent: int) -> None:
    program = os.pidfd_open(pid)
    try:
        starter = os.pidfd_open(client_parent)
    except ProcessLookupError:
        return
    while True:
        ready = select.select([client, program, starter], [], [])[0]
        if program in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            client.sendall(code.to_bytes(4, "big", signed=True))
            return
        if starter in ready:
            return
        numbers = client.recv(16)
        for number in numbers or [signal.SIGKILL]:
            os.kill(pid, number)
        if not numbers:
            os.waitpid(pid, 0)
            return


def _take_over(program: Program, opened: list[int]) -> None:
    """Make this process what the program's process would have been."""
    os.setsid()
    # Out of the way first: a number that is wanted may be that of another one that was sent.
    high = [os.dup2(descriptor, 1000 + index, inheritable=False) for index, descriptor in enumerate(opened)]
    os.closerange(0, 1000)
    for descriptor, number in zip(high, program.descriptors, strict=True):
        os.dup2(descriptor, number)
    os.closerange(1000, 1000 + len(high))
    os.chdir(program.directory)
    os.umask(program.umask)
    os.environ.clear()
    os.environ.update(program.variables)
    time.tzset()
    # What was loaded may have asked for it, with the server's variables.
    tempfile.tempdir = None
    for number in program.ignored_signals:
        signal.signal(number, signal.SIG_IGN)


def be(program: Program, interpreter: str) -> None:
    """Run a program as ``python`` would with a file, and ``python -m`` with a module."""
    sys.argv = program.words
    sys.executable = interpreter
    sys.stdin = sys.__stdin__ = _stream(program, 0, "r")
    sys.stdout = sys.__stdout__ = _stream(program, 1, "w")
    sys.stderr = sys.__stderr__ = _stream(program, 2, "w", errors="backslashreplace")
    paths = [path for path in program.variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = _first_path(program)
    sys.path[:] = [*first, *paths, *(path for path in sys.path if path not in _OWN_PATHS)]
    importlib.invalidate_caches()
    # As it would be: a module that runs as the program is not the one that is imported by its name.
    sys.modules.pop(program.words[0], None)
    _leave(_exit_code(program.words[0]))


def _is_script(name: str) -> bool:
    """Whether a file is to be run, or a directory with a program in it, rather than a module."""
    return name.endswith(".py") or Path(name, "__main__.py").is_file()


def _first_path(program: Program) -> list[str]:
    """First directory of the module search path; a directory that is run is put there at its start."""
    if not _is_script(program.words[0]):
        return [program.directory]
    script = Path(program.words[0]).resolve()
    return [] if script.is_dir() else [str(script.parent)]


def _exit_code(name: str) -> int:
    """Run a module or a script to its end, and return what the interpreter would make of how it ended."""
    try:
        if _is_script(name):
            runpy.run_path(name, run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException as error:  # noqa: BLE001  as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _leave(code: int) -> NoReturn:
    """End as the interpreter does, but leave it to the system to give the memory back."""
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _stream(program: Program, number: int, mode: str, *, errors: str = "strict") -> TextIOWrapper | None:
    """Return one of the three streams as the interpreter opens them, None for one that is closed."""
    if number not in program.descriptors:
        return None
    stream = open(number, mode, errors=errors, closefd=False)  # noqa: SIM115  it lasts as long as the process
    assert isinstance(stream, TextIOWrapper)
    stream.reconfigure(write_through=program.is_unbuffered, line_buffering=stream.isatty() or number == 2)
    return stream


_OWN_PATHS = {"", str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}

if __name__ == "__main__":
    door = listening(sys.argv[1])
    warm_up()
    if (wanted := program_to_be(door)) is not None:
        be(wanted, sys.argv[2])
