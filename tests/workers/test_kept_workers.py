import os
import signal
import sys

import pytest

from isaaclab_arena.workers.kept_workers import _KEPT, ask_kept_worker, stop_kept_workers
from isaaclab_arena.workers.worker_process import RequestError, WorkerError
from tests.workers.test_worker_process import FAKE


def asked(request: str, python: str = sys.executable) -> dict:
    return ask_kept_worker(FAKE, python, {}, {"request": request}, timeout_s=60)


def kept() -> list[int]:
    return [worker.pid for worker in _KEPT.values()]


def test_one_worker_of_an_interpreter_answers_all_questions_until_it_is_stopped():
    stop_kept_workers()
    assert asked("repeat") == {"request": "repeat"}
    before = kept()
    with pytest.raises(RequestError, match="the floor gave way"):
        asked("raise")
    assert asked("repeat") == {"request": "repeat"}
    assert kept() == before
    os.kill(before[0], signal.SIGKILL)
    assert asked("repeat") == {"request": "repeat"}
    assert len(kept()) == 1
    assert kept() != before
    stop_kept_workers()
    assert kept() == []


def test_an_interpreter_that_cannot_answer_is_not_kept():
    with pytest.raises(WorkerError):
        asked("repeat", python="/bin/false")
    assert kept() == []
