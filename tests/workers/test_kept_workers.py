import os
import signal
import sys
import threading

import pytest

from isaaclab_arena.workers import (
    _KEPT,
    RequestError,
    WorkerError,
    WorkerProcess,
    ask_kept_worker,
    stop_kept_workers,
    taken_worker,
    which_worker,
)
from tests.workers.test_worker_process import FAKE


def asked(request: str, python: str = sys.executable) -> dict:
    return ask_kept_worker(FAKE, python, {}, {"request": request}, timeout_s=60)


def handed_on(request: str) -> WorkerProcess | None:
    return taken_worker(which_worker(FAKE, sys.executable, {}), {"request": request})


def kept() -> list[int]:
    return [kept.worker.pid for kept in _KEPT]


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


def test_only_workers_that_answer_by_what_is_named_are_stopped(tmp_path):
    stop_kept_workers()
    asked("repeat")
    [pid] = kept()
    stop_kept_workers(tmp_path)
    assert kept() == [pid]
    stop_kept_workers(FAKE)
    assert kept() == []


def test_an_interpreter_that_cannot_answer_is_not_kept():
    with pytest.raises(WorkerError):
        asked("repeat", python="/bin/false")
    assert kept() == []


def test_a_worker_that_was_asked_one_thing_alone_is_handed_on_to_whoever_goes_on_with_that():
    stop_kept_workers()
    assert handed_on("repeat") is None
    for _ in range(2):
        asked("repeat")
    [pid] = kept()
    worker = handed_on("repeat")
    assert worker is not None
    assert worker.pid == pid
    assert handed_on("repeat") is None
    stop_kept_workers()
    assert worker.ask({"request": "repeat"}, 60)[0] == {"request": "repeat"}
    worker.close()


def test_a_worker_that_was_asked_something_else_too_is_not_handed_on():
    stop_kept_workers()
    asked("repeat")
    with pytest.raises(RequestError, match="the floor gave way"):
        asked("raise")
    assert handed_on("repeat") is None
    assert handed_on("raise") is None
    assert len(kept()) == 1
    stop_kept_workers()


def test_a_worker_that_died_or_that_another_thread_started_is_not_handed_on():
    stop_kept_workers()
    asked("repeat")
    [started] = [each.worker for each in _KEPT]
    found: list[WorkerProcess | None] = []
    other = threading.Thread(target=lambda: found.append(handed_on("repeat")))
    other.start()
    other.join()
    assert found == [None]
    os.kill(started.pid, signal.SIGKILL)
    while started.is_running:
        pass
    assert handed_on("repeat") is None
    assert kept() == []
