"""Start programs of this interpreter, and processes that wait for requests.

Loads nothing heavy: some of these processes measure how long that takes.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import ROOT


def module(name: str, *words: object) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *map(str, words)]


class Worker:
    """A process that answers each line of its standard input with a line of JSON; see `serve`.

    Args:
        command: Program and arguments.
        variables: Its environment variables.

    Attributes:
        hello: What it said when it was ready.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._command = " ".join(command)
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=variables, cwd=ROOT, text=True)

    def ask(self, *words: object) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer; lines that are no objects, which libraries print, are skipped.

        Raises:
            RuntimeError: The process has ended; it has said why on the console.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self._command} ended with {self._process.wait()} without an answer")

    def end_input(self) -> None:
        """Close the input, at which the process ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Close the input, and wait for the process to end."""
        self.end_input()
        self._process.wait()


def serve(hello: Mapping[str, Any], respond: Callable[..., Mapping[str, Any]]) -> None:
    """Print a line of JSON, then answer each line of whole numbers on the standard input with another.

    Args:
        hello: Said first.
        respond: Takes the numbers of a line.
    """
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        print(json.dumps(respond(*map(int, line.split()))), flush=True)
