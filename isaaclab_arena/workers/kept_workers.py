"""Workers that are kept for the next who needs the same: questions to an interpreter, and jobs one after the other."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isaaclab_arena.workers.worker_process import WorkerError, WorkerProcess


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A worker that was asked questions.

    Attributes:
        answers: What it answers by.
        worker: It.
        questions: What it was asked.
        thread: The thread that started it, with which it ends.
    """

    answers: Path
    worker: WorkerProcess
    questions: list[Mapping[str, Any]] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.questions.append(message)
        return self.worker.ask(message, timeout_s)[0]


_KEPT: dict[Hashable, _Kept] = {}
"""A worker for each interpreter that was asked, for the next question: importing its package may take seconds."""

REMEMBERED: dict[Hashable, Any] = {}
"""What else was learned of interpreters and need not be asked for again, until all of these workers are stopped."""


def ask_kept_worker(
    answers: Path, python: str, variables: Mapping[str, str], message: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Return what an interpreter answers to a question about its packages, from a worker that stays.

    Args:
        answers: See `WorkerProcess`.
        python: The interpreter.
        variables: See `WorkerProcess`.
        message: The question, which must leave nothing behind.
        timeout_s: How long it may take [s].

    Raises:
        RequestError: If it raises there.
        WorkerError: If the interpreter cannot be used.
    """
    which = _which(answers, python, variables)
    if which in _KEPT:
        # It ends with the thread that started it, and is then started anew.
        with contextlib.suppress(WorkerError):
            return _KEPT[which].ask(message, timeout_s)
        _KEPT.pop(which).worker.close()
    _KEPT[which] = _Kept(answers=answers, worker=WorkerProcess(answers, python, variables))
    try:
        return _KEPT[which].ask(message, timeout_s)
    except WorkerError:
        _KEPT.pop(which).worker.close()
        raise


def asked_worker(
    answers: Path, python: str, variables: Mapping[str, str], question: Mapping[str, Any]
) -> WorkerProcess | None:
    """Return a worker that was asked one question alone, and stays no longer; None where there is none.

    Whoever would start one of the same kind, which does next what it has to do for that answer, is saved its start.

    Args:
        answers: See `WorkerProcess`.
        python: The interpreter.
        variables: See `WorkerProcess`.
        question: What it may have been asked, any number of times.
    """
    which = _which(answers, python, variables)
    kept = _KEPT.get(which)
    if kept is None or kept.thread != threading.get_ident() or any(each != question for each in kept.questions):
        return None
    worker = _KEPT.pop(which).worker
    if worker.is_running:
        return worker
    worker.close()
    return None


def stop_kept_workers(answers: Path | None = None) -> None:
    """Stop those workers, once all has been asked that there was to ask: they hold memory.

    Args:
        answers: What they answer by, None for whatever it is.
    """
    if answers is None:
        REMEMBERED.clear()
    for which in [which for which, kept in _KEPT.items() if answers in (None, kept.answers)]:
        _KEPT.pop(which).worker.close()


def _which(answers: Path, python: str, variables: Mapping[str, str]) -> Hashable:
    return (answers, python, *sorted(variables.items()))


_SPARE: ContextVar[defaultdict[Hashable, list[WorkerProcess]] | None] = ContextVar("spare_workers", default=None)


@contextlib.contextmanager
def spare_workers_kept() -> Iterator[None]:
    """Keep workers that are spared within the ``with`` block until its end, for whoever takes them there."""
    spare: defaultdict[Hashable, list[WorkerProcess]] = defaultdict(list)
    token = _SPARE.set(spare)
    try:
        yield
    finally:
        _SPARE.reset(token)
        for worker in (each for workers in spare.values() for each in workers):
            worker.close()


def can_spare_workers() -> bool:
    """Return whether this is within `spare_workers_kept`."""
    return _SPARE.get() is not None


def spare_worker(which: Hashable, worker: WorkerProcess) -> None:
    """Keep a worker that is as good as new, or stop it where nobody could take it.

    Args:
        which: What one has to ask for to be given it: how it was started, and what was loaded in it since.
        worker: It.
    """
    spare = _SPARE.get()
    if spare is None:
        worker.close()
    else:
        spare[which].append(worker)


def taken_worker(which: Hashable) -> WorkerProcess | None:
    """Return a worker that was spared and lives, None where there is none; see `spare_worker`."""
    workers = (_SPARE.get() or {}).get(which, [])
    while workers:
        worker = workers.pop(0)
        if worker.is_running:
            return worker
        worker.close()
    return None
