"""Workers that are kept for the next who needs the same: questions to an interpreter, and jobs one after the other."""

import contextlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from isaaclab_arena.workers.worker_process import WorkerError, WorkerProcess

_KEPT: dict[tuple[object, ...], WorkerProcess] = {}
"""A worker for each interpreter that was asked, for the next question: importing its package may take seconds."""


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
    which = (answers, python, *sorted(variables.items()))
    if which in _KEPT:
        # It ends with the thread that started it, and is then started anew.
        with contextlib.suppress(WorkerError):
            return _KEPT[which].ask(message, timeout_s)[0]
        _KEPT.pop(which).close()
    _KEPT[which] = WorkerProcess(answers, python, variables)
    try:
        return _KEPT[which].ask(message, timeout_s)[0]
    except WorkerError:
        _KEPT.pop(which).close()
        raise


def stop_kept_workers() -> None:
    """Stop those workers, once all has been asked that there was to ask: they hold memory."""
    while _KEPT:
        _KEPT.popitem()[1].close()


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
