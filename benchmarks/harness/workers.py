"""Start programs of this interpreter, and processes that wait for requests; read CPU time and memory of processes.

Other interpreters, of Python 3.9 and later, import this file too, so it imports the standard library only.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT


def module(name: str, *words: object) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *map(str, words)]


class Worker:
    """A process that answers each line of its standard input with a line of JSON; see `serve`."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._command = " ".join(command)
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=variables, cwd=ROOT, text=True)

    def ask(self, *words: object) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer, and skip lines that libraries print."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self._command} ended with {self._process.wait()} without an answer")

    def end_input(self) -> None:
        """Close the input, which ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Close the input, and wait for the process to end."""
        self.end_input()
        self._process.wait()


def serve(hello: Mapping[str, Any], respond: Callable[..., Mapping[str, Any]]) -> None:
    """Print ``hello`` as a line of JSON, then answer each line of whole numbers on the standard input with another."""
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        print(json.dumps(respond(*map(int, line.split()))), flush=True)


def children(pid: object = "self") -> list[int]:
    """Return the child processes of a process, by default of this one."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text(encoding="ascii").split()]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process with all its threads [s]."""
    # The number of its clock as clock_getcpuclockid makes it on Linux; /proc counts in hundredths of a second.
    return time.clock_gettime((~pid << 3) | 2)


def memory_bytes(pid: int) -> int:
    """Return the memory of a process, with its part of shared memory [bytes]."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
