"""Programs in interpreters of their own: started, asked, watched and stopped."""

import collections
import contextlib
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np

from isaaclab_arena.config.options import Count, NotNegative, Positive
from isaaclab_arena.distributed.context import variables_of_worker
from isaaclab_arena.errors import PolicyLostError, shortened
from isaaclab_arena.logs import within
from isaaclab_arena.paths import given_path
from isaaclab_arena.workers import program


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How workers are run."""

    python: str | None = None  # interpreter of the environment's worker processes; this process by default
    environment_variables: dict[str, str] = field(default_factory=dict)  # of workers, beside this process's
    envs_per_worker: Count = 1  # env slots in each worker process
    steps_while_starting: NotNegative = 0  # control steps of other env slots before the reset of one is waited for
    start_timeout_s: Positive = 300.0  # limit of a worker's time to make or reset an environment [s]
    step_timeout_s: Positive = 60.0  # limit of a worker's time for a step [s]

    @property
    def interpreter(self) -> str:
        """The workers' interpreter, by default that of this process."""
        return str(given_path(self.python or sys.executable))


_STDERR_LINES = 20
_CLOSE_TIMEOUT_S = 5.0
_READ_AHEAD_BYTES = 4096
_LONGEST_POLL_MS = 1e6


class WorkerError(Exception):
    """The worker died, did not answer or answered nonsense. It was stopped; the message ends with its stderr."""

    def __init__(self, message: str, *, died: bool = False) -> None:
        super().__init__(message)
        self.died = died  # True if the worker ended by itself
        self.details = ""  # as those of a `RequestError`


class RequestError(Exception):
    """The worker is well, but the request raised an error in it."""

    def __init__(self, message: str, *, words: str, kind: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback  # the worker's own traceback
        families = {"import": ImportError, "lookup": LookupError}
        # The error of a local call, for these families; it has the message without the error's type.
        self.as_here = families[kind](words) if kind in families else None
        self.details = f"\n{traceback}"  # continues the message


class WorkerProcess:
    """Starts a worker and exchanges messages with it, one request at a time: `send`, then `receive`."""

    def __init__(self, answers: Path, python: str, variables: Mapping[str, str]) -> None:
        # ``answers`` is the file with the class ``Answers``; see `program.main`. The interpreter needs numpy and the
        # imports of that file. ``variables`` extend this process's environment variables.
        self._memory_file = memory_file()
        self.memory = self._memory_file.fileno()  # of a file that the worker shares and can map
        command = [python, program.__file__, str(self.memory), str(answers)]
        if variables:
            command = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *command]
        try:
            # A session of its own keeps Ctrl-C in a terminal from the worker: it asks this program to stop.
            self._process = subprocess.Popen(  # noqa: S603  the user names the interpreter
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(self.memory,),
                env=variables_of_worker(),
            )
        except OSError as error:
            self._memory_file.close()
            raise WorkerError(f"cannot start '{python}': {error.strerror}") from error

        # Popen declares its pipes as optional.
        process, self.pid = self._process, self._process.pid
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("a worker was started without pipes")
        self._requests, self._answers, errors = process.stdin, process.stdout, process.stderr
        self._ahead = bytearray()
        self._answered = select.poll()
        self._answered.register(self._answers, select.POLLIN)
        self._stderr: collections.deque[str] = collections.deque(maxlen=_STDERR_LINES)

        def drain() -> None:
            with errors:
                self._stderr.extend(line.decode(errors="replace").rstrip() for line in errors)

        self._reader = threading.Thread(target=drain, daemon=True)
        self._reader.start()
        self._asked_s = time.monotonic()
        self._number = 0
        self._lost: WorkerError | None = None

    @property
    def is_running(self) -> bool:
        """True while the worker has not ended."""
        return self._process.poll() is None

    def ask(
        self, message: Mapping[str, Any], timeout_s: float, arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Send a request and return its answer; see `send` and `receive`."""
        self.send(message, arrays)
        return self.receive(timeout_s)

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Send a request; if the worker is gone, `receive` raises that, because requests to other workers go first."""
        frame = program.encode(message, arrays or {})
        self._asked_s = time.monotonic()
        self._number += 1
        if self._lost is not None:
            return
        try:
            self._requests.write(program.NUMBER.pack(self._number))
            self._requests.write(frame)
            self._requests.flush()
        except OSError:
            self._failure("died")

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return message and arrays of the answer, due `timeout_s` [s] after the request; RequestError, WorkerError."""
        if self._lost is not None:
            raise self._lost
        deadline_s = self._asked_s + timeout_s
        try:
            (number,) = program.NUMBER.unpack(self._read_exactly(program.NUMBER.size, deadline_s))
            if number != self._number:
                raise self._failure(
                    f"answered nonsense (the answer to request {number} came to request {self._number})"
                )
            message, arrays = program.decode(lambda size: self._read_exactly(size, deadline_s))
        except EOFError as error:
            raise self._failure("died") from error
        except TimeoutError as error:
            raise self._failure(f"did not answer within {timeout_s:g} s") from error
        except (program.FrameError, ValueError, KeyError, TypeError) as error:
            raise self._failure(f"answered nonsense ({error})") from error
        if "error" in message:
            told = {name: message[name] for name in ("words", "kind", "traceback")}
            raise RequestError(message["error"], **told)
        return message, arrays

    def close(self) -> None:
        """Stop the worker. May be called more than once."""
        try:
            self._requests.close()
        except OSError:
            # The pipe of a dead worker still held unsent data.
            self._process.kill()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_CLOSE_TIMEOUT_S)
        self._answers.close()
        self._memory_file.close()

    def _read_exactly(self, size: int, deadline_s: float) -> bytearray:
        # Most answers are short, so the first read takes as much of the answer as is there.
        if not self._ahead and 0 < size < _READ_AHEAD_BYTES:
            self._wait(deadline_s)
            self._ahead += os.read(self._answers.fileno(), _READ_AHEAD_BYTES)
        taken = self._ahead[:size]
        del self._ahead[:size]
        filled = len(taken)
        if filled == size:
            return taken
        # Read straight into the result: joining the pieces of a picture takes three times as long.
        taken.extend(bytes(size - filled))
        view = memoryview(taken)
        while filled < size:
            self._wait(deadline_s)
            num_bytes = os.readv(self._answers.fileno(), [view[filled:]])
            if num_bytes == 0:
                raise EOFError
            filled += num_bytes
        return taken

    def _wait(self, deadline_s: float) -> None:
        """Wait until data can be read or the worker is gone; TimeoutError after the deadline."""
        while not self._answered.poll(min(max(0.0, 1e3 * (deadline_s - time.monotonic())), _LONGEST_POLL_MS)):
            if time.monotonic() >= deadline_s:
                raise TimeoutError

    def _failure(self, what: str) -> WorkerError:
        """Stop the worker and return the error to raise, now and at later requests."""
        if what != "died":
            self._process.kill()
        self.close()
        status, died = self._process.returncode, what == "died"
        ending = f" by signal {-status}" if status < 0 else f" with exit code {status}"
        said = "\n".join(self._stderr) or "nothing"
        self._lost = WorkerError(f"the worker {what}{ending if died else ''}\nit last wrote:\n{said}", died=died)
        return self._lost


def memory_file() -> IO[bytes]:
    """Return an anonymous file, which disappears when the last process closes it."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("worker"), "r+b")
    return tempfile.TemporaryFile()


# Workers kept for reuse: for questions to an interpreter, and for jobs one after the other.


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A worker that waits for its next user."""

    which: Hashable  # its start and the code loaded in it since: equal workers can replace each other
    worker: WorkerProcess
    questions: list[Mapping[str, Any]] = field(default_factory=list)  # all so far; none to a spare
    # The thread that started it, and with which it ends, so that no other may take it.
    thread: int = field(default_factory=threading.get_ident)

    def stop(self) -> None:
        _KEPT.remove(self)
        self.worker.close()


_KEPT: list[_Kept] = []
"""A worker for each interpreter that a thread asked, as importing its package may take seconds, and spares of a run."""

REMEMBERED: dict[Hashable, Any] = {}
"""Other facts on interpreters, which are not asked for again until all of these workers are stopped."""

_SPARES: ContextVar[bool] = ContextVar("spare_workers", default=False)


def which_worker(answers: Path, python: str, variables: Mapping[str, str]) -> Hashable:
    """Return the key of workers that answer questions about an interpreter."""
    return (answers, python, *sorted(variables.items()))


def ask_kept_worker(
    answers: Path, python: str, variables: Mapping[str, str], message: Mapping[str, Any], timeout_s: float
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Ask a kept worker, such as one about its interpreter's packages; RequestError or WorkerError if that fails."""
    # The question must have no side effects, because the worker may be asked again. Each thread has its own worker.
    which, here = which_worker(answers, python, variables), threading.get_ident()
    # A worker ends with its thread.
    for ended in [each for each in _KEPT if not each.worker.is_running]:
        ended.stop()
    while True:
        kept = next((each for each in _KEPT if each.which == which and each.thread == here), None)
        is_new = kept is None
        if kept is None:
            kept = _Kept(which=which, worker=WorkerProcess(answers, python, variables))
            _KEPT.append(kept)
        # Two different questions are enough to know that no one else may take it.
        if len(kept.questions) < 2 and message not in kept.questions:
            kept.questions.append(message)
        try:
            return kept.worker.ask(message, timeout_s)
        except WorkerError:
            # A worker ends with the thread that started it; then a new one is needed.
            kept.stop()
            if is_new:
                raise


def taken_worker(which: Hashable, question: Mapping[str, Any] | None = None) -> WorkerProcess | None:
    """Take a kept worker that still runs and was asked nothing but `question`, None if there is none."""
    # A caller whose new worker would begin with the same question saves the start.
    for kept in [each for each in _KEPT if each.which == which and each.thread == threading.get_ident()]:
        if all(each == question for each in kept.questions):
            _KEPT.remove(kept)
            if kept.worker.is_running:
                return kept.worker
            kept.worker.close()
    return None


def stop_kept_workers(answers: Path | None = None) -> None:
    """Stop the workers that were asked, with these `answers`, None for all; it frees memory after the last question."""
    if answers is None:
        REMEMBERED.clear()
    for kept in [each for each in _KEPT if each.questions]:
        if answers is None or (isinstance(kept.which, tuple) and kept.which[0] == answers):
            kept.stop()


@contextlib.contextmanager
def spare_workers_kept() -> Iterator[None]:
    """Keep spared workers until the end of the ``with`` block, for reuse within it."""
    token = _SPARES.set(True)
    try:
        yield
    finally:
        _SPARES.reset(token)
        for kept in [each for each in _KEPT if not each.questions and each.thread == threading.get_ident()]:
            kept.stop()


def spare_worker(which: Hashable, worker: WorkerProcess, timeout_s: float) -> bool:
    """Keep a worker for `taken_worker` once it has closed its environments; False outside of `spare_workers_kept`."""
    is_kept = _SPARES.get()
    if is_kept:
        worker.ask({"request": "forget"}, timeout_s)
        _KEPT.append(_Kept(which=which, worker=worker))
    return is_kept


# Connect to a policy in another process or behind a server: the time limit, its losses, and its identity.

_LOG = logging.getLogger(__name__)

_MARGIN_S = 15.0
"""A policy is lost this long before the watchdog ends the process [s], so that episodes are lost and not the rank."""
_MOST_STATED = 500

Answer = TypeVar("Answer")
Loss = TypeVar("Loss", bound=Exception)
Stated = TypeVar("Stated")


def patience_s(limit_s: float) -> float:
    """Return the wait for a remote policy [s]: the limit, or less if the process would be ended before."""
    return within(limit_s, margin_s=_MARGIN_S)


class PolicyElsewhere(Generic[Stated]):
    """A policy in another process or behind a server, independent of the transport."""

    def __init__(self, name: str, *, most_losses: int = 2, stated: Stated | None = None) -> None:
        self.name = name  # the name in messages: `the policy server at localhost:5555`
        self.stated = stated  # the first description of itself, None before
        # A question that ends the policy again and again is at fault, so its losses are limited.
        self._most_losses = most_losses

    def meet(self, stated: Stated) -> None:
        """Compare its description with the first one, at each connection; PolicyLostError if it differs."""
        if self.stated is not None and stated != self.stated:
            before, now = (shortened(str(each), _MOST_STATED) for each in (self.stated, stated))
            raise PolicyLostError(
                f"{self.name} came back as another one: it stated {before} and states {now} now; "
                "episodes of both must not count as one policy's"
            )
        self.stated = stated

    def asked(
        self, ask: Callable[[], Answer], losses: tuple[type[Loss], ...], *, comes_back: Callable[[Loss], bool]
    ) -> Answer:
        """Return an answer, asking again after a loss; PolicyLostError if it does not come back."""
        # ``ask`` may need a new connection, and the answer must follow from the question alone. ``comes_back`` is False
        # for a late policy: it is slow and not gone.
        num_losses = 0
        while True:
            try:
                return ask()
            except losses as error:
                num_losses += 1
                late = isinstance(error, TimeoutError)
                reason = "it did not answer in time" if late else str(error) or type(error).__name__
                if not comes_back(error):
                    raise PolicyLostError(f"{self.name} is lost: {reason}") from error
                if num_losses == self._most_losses:
                    message = f"{self.name} was lost {num_losses} times over one query: {reason}"
                    raise PolicyLostError(message) from error
                _LOG.warning("%s was lost (%s); asking again", self.name, reason)
