"""A worker: a process of its own, with an interpreter of its own, that answers requests."""

import collections
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from isaaclab_arena.config.options import Count, Positive
from isaaclab_arena.environments.gym.worker import frames
from isaaclab_arena.environments.gym.worker.shared_arrays import Description, SharedArrays, num_bytes

SCRIPT_DIRECTORY = Path(__file__).with_name("worker")

_STDERR_LINES = 20
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How workers are run.

    Attributes:
        python: Interpreter in which the environment runs, in worker processes; this process by default.
        environment_variables: What the workers have beside this process's variables.
        envs_per_worker: Env slots in each worker process.
        start_timeout_s: How long a worker may take to make or reset an environment [s].
        step_timeout_s: How long a worker may take for a step of an environment [s].
    """

    python: str | None = None
    environment_variables: dict[str, str] = field(default_factory=dict)
    envs_per_worker: Count = 1
    start_timeout_s: Positive = 300.0
    step_timeout_s: Positive = 60.0

    @property
    def interpreter(self) -> str:
        """Their interpreter, that of this process by default."""
        return str(Path(self.python or sys.executable).expanduser())


class WorkerError(Exception):
    """The worker died, fell silent or spoke nonsense; it was stopped, and the message ends with what it last wrote.

    Attributes:
        died: Whether it died by itself.
    """

    def __init__(self, message: str, *, died: bool = False) -> None:
        super().__init__(message)
        self.died = died


class RequestError(Exception):
    """The worker is well, but what it was asked to do raised.

    Attributes:
        kind: ``import`` and ``lookup`` for errors of these families, ``other`` for the rest.
        traceback: The worker's own.
    """

    def __init__(self, message: str, *, kind: str, traceback: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback


class WorkerProcess:
    """Starts a worker and talks to it. One request at a time: `send`, then `receive`.

    Args:
        python: The interpreter, which needs numpy, and Gymnasium for most sources.
        variables: Environment variables that the worker has beside those of this process.

    Raises:
        WorkerError: If the interpreter cannot be started.
    """

    def __init__(self, python: str, variables: Mapping[str, str]) -> None:
        self._memory = _memory_file()
        command = [python, str(SCRIPT_DIRECTORY), str(self._memory.fileno())]
        if variables:
            command = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *command]
        try:
            # In a session of its own, so that Ctrl-C in a terminal asks this program to stop and not the worker.
            self._process = subprocess.Popen(  # noqa: S603  the user names the interpreter
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(self._memory.fileno(),),
            )
        except OSError as error:
            self._memory.close()
            raise WorkerError(f"cannot start '{python}': {error.strerror}") from error
        self._requests, self._answers, errors = _pipes(self._process)
        self._stderr: collections.deque[str] = collections.deque(maxlen=_STDERR_LINES)
        self._reader = threading.Thread(target=self._drain, args=(errors,), daemon=True)
        self._reader.start()
        self._asked_s = time.monotonic()

    @property
    def pid(self) -> int:
        """The worker's process number."""
        return self._process.pid

    def ask(
        self, message: Mapping[str, Any], timeout_s: float, arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Send a request and return its answer; see `send` and `receive`."""
        self.send(message, arrays)
        return self.receive(timeout_s)

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Send a request.

        Raises:
            WorkerError: If the worker is gone.
        """
        self._asked_s = time.monotonic()
        try:
            self._requests.write(frames.encode(message, arrays or {}))
            self._requests.flush()
        except OSError as error:
            raise self._failure("died") from error

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return message and arrays of the answer.

        Args:
            timeout_s: How long after the request it may come [s].

        Raises:
            RequestError: If the request raised in the worker.
            WorkerError: If the worker died, did not answer in time, or answered nonsense.
        """
        deadline_s = self._asked_s + timeout_s
        try:
            message, arrays = frames.decode(lambda size: self._read_exactly(size, deadline_s))
        except EOFError as error:
            raise self._failure("died") from error
        except TimeoutError as error:
            raise self._failure(f"did not answer within {timeout_s:g} s") from error
        except (frames.FrameError, ValueError, KeyError, TypeError) as error:
            raise self._failure(f"answered nonsense ({error})") from error
        if "error" in message:
            raise RequestError(message["error"], kind=message["kind"], traceback=message["traceback"])
        return message, arrays

    def share(self, description: Description, num_slots: int) -> SharedArrays:
        """Return the arrays in which the worker shows what steps of its environments give, once it has made one.

        Args:
            description: What they look like.
            num_slots: How many env slots it holds.
        """
        os.ftruncate(self._memory.fileno(), num_bytes(description, num_slots))
        return SharedArrays(self._memory.fileno(), description, num_slots)

    def close(self) -> None:
        """Stop the worker. May be called more than once."""
        try:
            self._requests.close()
        except OSError:
            # Something unsent was left in the pipe of a worker that is gone.
            self._process.kill()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_CLOSE_TIMEOUT_S)
        self._answers.close()
        self._memory.close()

    def _read_exactly(self, size: int, deadline_s: float) -> bytearray:
        # Straight into its place: pictures that are put together from pieces take three times as long.
        taken = bytearray(size)
        view, filled = memoryview(taken), 0
        while filled < size:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            num_bytes = os.readv(self._answers.fileno(), [view[filled:]])
            if num_bytes == 0:
                raise EOFError
            filled += num_bytes
        return taken

    def _failure(self, what: str) -> WorkerError:
        """Stop the worker and return what is to be raised."""
        if what != "died":
            self._process.kill()
        self.close()
        status = self._process.returncode
        ending = f" by signal {-status}" if status < 0 else f" with exit code {status}"
        said = "\n".join(self._stderr) or "nothing"
        died = what == "died"
        return WorkerError(f"the worker {what}{ending if died else ''}\nit last wrote:\n{said}", died=died)

    def _drain(self, errors: IO[bytes]) -> None:
        with errors:
            for line in errors:
                self._stderr.append(line.decode(errors="replace").rstrip())


def _memory_file() -> IO[bytes]:
    """Return a file without a name, which is gone when the last process that has it open is."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("worker"), "r+b")
    return tempfile.TemporaryFile()


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("a worker was started without pipes")
    return process.stdin, process.stdout, process.stderr


_KEPT: dict[tuple[object, ...], WorkerProcess] = {}
"""A worker for each interpreter that was asked, for the next question: importing its package may take seconds."""


def ask_kept_worker(
    python: str, variables: Mapping[str, str], message: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Return what an interpreter answers to a question about its packages, from a worker that stays.

    Args:
        python: The interpreter.
        variables: See `WorkerProcess`.
        message: The question, which must not make an environment.
        timeout_s: How long it may take [s].

    Raises:
        RequestError: If it raises there.
        WorkerError: If the interpreter cannot be used.
    """
    which = (python, *sorted(variables.items()))
    if which in _KEPT:
        # It ends with the thread that started it, and is then started anew.
        with contextlib.suppress(WorkerError):
            return _KEPT[which].ask(message, timeout_s)[0]
        _KEPT.pop(which).close()
    _KEPT[which] = WorkerProcess(python, variables)
    try:
        return _KEPT[which].ask(message, timeout_s)[0]
    except WorkerError:
        _KEPT.pop(which).close()
        raise


def stop_kept_workers() -> None:
    """Stop those workers: who builds environments has asked what there was to ask, and they hold memory."""
    while _KEPT:
        _KEPT.popitem()[1].close()
