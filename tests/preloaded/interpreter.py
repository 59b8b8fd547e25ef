"""Gives tests an interpreter whose programs begin in a hundredth of a second instead of two seconds.

A server has imported what the programs import, and runs each in a forked child of itself, with the arguments,
variables, directory, open files and exit code that the program would have had. Where that cannot be the same, the
client that is started in the interpreter's place becomes the interpreter that it stands for.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[2]
_CLIENT = Path(__file__).with_name("client.py")
_READ_AT_START = (
    "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONWARNINGS", "PYTHONUTF8", "PYTHONIOENCODING", "LANG", "LC_ALL",
    "LD_PRELOAD", "MUJOCO_GL",
)  # fmt: skip


_OF_THE_TEST_RUN: list[str] = []


def use(path: str) -> None:
    """Use an interpreter that another process of the test run has made, which lives longer than this one."""
    _OF_THE_TEST_RUN[:] = [path]


@cache
def preloaded_python() -> str:
    """Return the path of an interpreter that is quick to start; the usual one on systems where there is none.

    A machine with a GPU has none: what is imported may ask the driver something, and CUDA does not outlive a fork.
    """
    if _OF_THE_TEST_RUN:
        return _OF_THE_TEST_RUN[0]
    if not hasattr(os, "pidfd_open") or torch.cuda.device_count():
        return sys.executable
    directory = Path(tempfile.mkdtemp(prefix="preloaded_python_"))
    # A link, because the first line of a script may be no longer than 127 characters, and holds no blanks.
    (directory / "real").symlink_to(sys.executable)
    client = directory / "python"
    at_start = {name: os.environ.get(name) for name in _READ_AT_START}
    call = f"main({sys.executable!r}, {str(directory / 'socket')!r}, {at_start!r})"
    client.write_text(f"#!{directory / 'real'} -IS\n{_CLIENT.read_text()}\n\n{call}\n")
    client.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.preloaded.server", str(directory / "socket"), str(client)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the server of preloaded programs does not start"
    atexit.register(_end, server, directory)
    return str(client)


def _end(server: subprocess.Popen[bytes], directory: Path) -> None:
    """Let the server end, by closing the other end of its input."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait(timeout=60)
    shutil.rmtree(directory, ignore_errors=True)
