"""A worker for each interpreter that was asked, kept for the next question."""

import contextlib
from collections.abc import Mapping
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
