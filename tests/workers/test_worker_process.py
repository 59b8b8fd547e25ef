"""Worker processes and the frames they exchange."""

import ast
import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.distributed.context import process_is_running, process_start_ticks, variables_of_child
from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.logs import ended_in
from isaaclab_arena.workers import (
    _KEPT,
    PolicyElsewhere,
    RequestError,
    WorkerError,
    WorkerProcess,
    ask_kept_worker,
    patience_s,
    program,
    stop_kept_workers,
    taken_worker,
    which_worker,
)

# Workers answer in time or are stopped, need little, and leave nothing behind.


ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake" / "answers.py"


def worker(python_path: Path | None = None, python: str = sys.executable) -> WorkerProcess:
    return WorkerProcess(FAKE, python, {"PYTHONPATH": str(python_path)} if python_path else {})


def test_an_answer_is_that_to_the_request_and_an_error_that_of_the_worker_which_lives_on(tmp_path):
    for name in ("program", "answers"):
        (tmp_path / f"{name}.py").touch()
    with closing(worker(python_path=tmp_path)) as asked:
        for number in range(3):
            message, arrays = asked.ask({"request": "repeat", "number": number}, 60, {"x": np.full(2, number)})
            assert message["number"] == number
            assert arrays["x"].tolist() == [number, number]
        os.ftruncate(asked.memory, 16)
        asked.ask({"request": "write"}, 60)
        assert os.pread(asked.memory, 16, 0) == b"\0\0\0\0seen" + bytes(8)
        with pytest.raises(RequestError, match="OSError: the floor gave way") as told:
            asked.ask({"request": "raise"}, 60)
        assert told.value.as_here is None
        with pytest.raises(RequestError, match="ModuleNotFoundError: No module named 'no_such'") as told:
            asked.ask({"request": "import", "name": "no_such"}, 60)
        assert repr(told.value.as_here) == """ImportError("No module named 'no_such'")"""
        assert "answers.py" in told.value.traceback
        # Modules of the worker shadow no module of the same name.
        for name in ("program", "answers"):
            assert asked.ask({"request": "import", "name": name}, 60)[0] == {"file": str(tmp_path / f"{name}.py")}
    asked.close()
    assert not process_is_running(asked.pid, None)


def test_a_worker_that_dies_is_killed_or_falls_silent_is_told_with_its_last_words_the_signal_or_the_time():
    with pytest.raises(WorkerError, match=r"(?s)exit code 3.*the roof came down"):
        worker().ask({"request": "die"}, 60)
    killed, silent = worker(), worker()
    os.kill(killed.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(WorkerError, match="died by signal 9"):
            killed.ask({"request": "repeat"}, 60)
    silent.ask({"request": "repeat"}, 60)
    with pytest.raises(WorkerError, match=r"within 0\.2 s"):
        silent.ask({"request": "hang"}, 0.2)
    assert not process_is_running(silent.pid, None)


MUDDLER = """#!{python}
import os, sys
sys.path.insert(0, "{programs}")
import program

def read_exactly(size):
    return sys.stdin.buffer.read(size)

while number := read_exactly(program.NUMBER.size):
    message, arrays = program.decode(read_exactly)
    answer = number + program.encode(message, arrays)
    if message["request"] == "too large":
        header = b'{{"message": {{}}, "arrays": [["x", "<f8", [300000000]]]}}'
        answer = number + program.MAGIC + len(header).to_bytes(4, "little") + header
    if message["request"] == "too long":
        answer = number + program.MAGIC + (program.MAX_HEADER_BYTES + 1).to_bytes(4, "little")
    if message["request"] == "of another":
        answer = program.NUMBER.pack(7) + program.encode(message, arrays)
    sys.stdout.buffer.write(answer * (2 if message["request"] == "doubled" else 1))
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def muddler(tmp_path) -> WorkerProcess:
    """What answers as no worker does."""
    path = tmp_path / "muddler"
    path.write_text(MUDDLER.format(python=sys.executable, programs=Path(program.__file__).parent))
    path.chmod(0o755)
    return worker(python=str(path))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("too large", "2400000000 bytes"),
        ("too long", "frame"),
        ("of another", "request 7 came to request 1"),
        # The second time it comes to the next request.
        ("doubled", "request 1 came to request 2"),
    ],
)
def test_an_answer_that_is_too_large_or_of_another_request_is_not_read(muddler, request_, message):
    answers = (muddler.ask({"request": request_}, 60, {"x": np.zeros(3)}) for _ in range(2))
    with pytest.raises(WorkerError, match=f"answered nonsense.*{message}"):
        list(answers)
    assert not process_is_running(muddler.pid, None)


def test_a_worker_of_a_process_that_was_told_where_to_look_for_modules_does_not_look_there(tmp_path, monkeypatch):
    (tmp_path / "of_this_interpreter.py").touch()
    for name, value in variables_of_child([str(tmp_path)], {}).items():
        monkeypatch.setenv(name, value)
    asked = worker()
    with pytest.raises(RequestError, match="of_this_interpreter"):
        asked.ask({"request": "import", "name": "of_this_interpreter"}, 60)
    asked.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it notices once it is idle")
def test_a_worker_leaves_at_once_if_the_program_died_while_it_started():
    left = subprocess.Popen([sys.executable, program.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert left.stdin is not None
    # A request that would take a while still waits in the pipe when the program dies.
    left.stdin.write(program.NUMBER.pack(1) + program.encode({"request": "hang"}, {}))
    left.stdin.close()
    assert left.wait(timeout=60) == 1
    assert left.stdout is not None
    assert left.stdout.read() == b""


def test_a_worker_does_not_outlive_the_program_even_in_a_long_step():
    starts = """
import subprocess, sys, time
started = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(started.pid, flush=True)
started.stdin.write(sys.stdin.buffer.read())
started.stdin.flush()
time.sleep(600)
"""
    command = [sys.executable, "-c", starts, sys.executable, program.__file__, "1", str(FAKE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        started = process_start_ticks(pid)
        for request in ("repeat", "hang"):
            parent.stdin.write(program.NUMBER.pack(1) + program.encode({"request": request}, {}))
        parent.stdin.close()
        assert parent.stdout.read(program.NUMBER.size) == program.NUMBER.pack(1)
        assert process_is_running(pid, started)
        parent.kill()
        parent.wait()
    deadline_s = time.monotonic() + 60
    while process_is_running(pid, started) and time.monotonic() < deadline_s:
        select.select([], [], [], 0.05)
    assert not process_is_running(pid, started)


@pytest.mark.parametrize(
    ("files", "packages"),
    [
        ("workers/program.py", set()),
        ("environments/gym/worker/*.py", {"gymnasium"}),
        # LeRobot imports both for any policy.
        ("policy/lerobot_worker.py", {"torch", "safetensors"}),
    ],
)
def test_what_runs_in_other_interpreters_needs_only_numpy_and_what_it_is_for(files, packages):
    allowed = {*sys.stdlib_module_names, "numpy", *packages}
    for path in (ROOT / "isaaclab_arena").glob(files):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert {name.partition(".")[0] for name in names} <= allowed, path.name


def decoded(frame: bytes) -> tuple[dict, dict]:
    return program.decode(io.BytesIO(frame).read)


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", ">f8", "?"])
def test_a_frame_brings_arrays_of_numbers_as_they_were(dtype):
    sent = (np.arange(12).reshape(3, 4) % 7).astype(dtype)
    message, arrays = decoded(program.encode({"a": [1, None]}, {"x": sent, "empty": sent[:0]}))
    assert message == {"a": [1, None]}
    assert np.array_equal(arrays["x"], sent)
    assert arrays["x"].dtype == np.dtype(dtype).newbyteorder("<")
    assert arrays["empty"].shape == (0, 4)
    assert program.encode({}, {}) == program.EMPTY
    assert decoded(program.EMPTY) == ({}, {})
    with pytest.raises(program.FrameError, match="numbers"):
        program.encode({}, {"x": np.array([None])})


def framed(header: bytes) -> bytes:
    return program.MAGIC + len(header).to_bytes(4, "little") + header + b"\0" * 64


def claiming(layout: str) -> bytes:
    """Frame of an array that claims to be of some kind and shape."""
    return framed(b'{"message": {}, "arrays": [["x", ' + layout.encode() + b"]]}")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (claiming('"|O", [1]'), "claims to be"),
        (claiming('"<f4", [-1]'), "claims to be"),
        (claiming('"<f8", [1048576, 1048576]'), "are allowed"),
        (claiming('"<U4", [1]'), "x"),
        (claiming('[["a", "O"]], [1]'), None),
        (claiming('"<f4", [true]'), None),
        (claiming('"<f4", [0, 1000000000000000000000000]'), None),
        (framed(b'{"message": {}, "arrays": 3}'), None),
        (framed(b"[" * 200_000), None),
        (framed(b"\x80\x04\x95"), None),
        (program.MAGIC + np.uint32(program.MAX_HEADER_BYTES + 1).tobytes(), "frame"),
        (b"Traceback (most recent call last)", "where a frame should begin"),
    ],
)
def test_a_frame_that_lies_or_is_nonsense_is_refused_and_nothing_is_unpickled(frame, message):
    with pytest.raises((program.FrameError, ValueError, KeyError, TypeError), match=message):
        decoded(frame)


def asked(request: str, python: str = sys.executable) -> dict:
    return ask_kept_worker(FAKE, python, {}, {"request": request}, timeout_s=60)[0]


def handed_on(request: str) -> WorkerProcess | None:
    return taken_worker(which_worker(FAKE, sys.executable, {}), {"request": request})


def kept() -> list[int]:
    return [kept.worker.pid for kept in _KEPT]


@pytest.fixture
def _none_kept():
    stop_kept_workers()
    yield
    stop_kept_workers()


@pytest.mark.usefixtures("_none_kept")
def test_one_worker_of_an_interpreter_answers_all_questions_until_it_is_stopped(tmp_path):
    assert asked("repeat") == {"request": "repeat"}
    before = kept()
    with pytest.raises(RequestError, match="the floor gave way"):
        asked("raise")
    assert asked("repeat") == {"request": "repeat"}
    assert kept() == before
    # One that was asked something else too is never handed on.
    assert handed_on("repeat") is None
    assert handed_on("raise") is None
    os.kill(before[0], signal.SIGKILL)
    assert asked("repeat") == {"request": "repeat"}
    assert len(kept()) == 1
    assert kept() != before
    stop_kept_workers(tmp_path)
    assert len(kept()) == 1, "it answers by another program"
    stop_kept_workers(FAKE)
    assert kept() == []
    with pytest.raises(WorkerError):
        asked("repeat", python="/bin/false")
    assert kept() == [], "it cannot answer"


@pytest.mark.usefixtures("_none_kept")
def test_a_worker_that_was_asked_one_thing_alone_is_handed_on_to_whoever_goes_on_with_that():
    assert handed_on("repeat") is None
    for _ in range(2):
        asked("repeat")
    [pid] = kept()
    found: list[WorkerProcess | None] = []
    other = threading.Thread(target=lambda: found.append(handed_on("repeat")))
    other.start()
    other.join()
    assert found == [None], "another thread started it"
    worker = handed_on("repeat")
    assert worker is not None
    assert worker.pid == pid
    assert handed_on("repeat") is None
    stop_kept_workers()
    assert worker.ask({"request": "repeat"}, 60)[0] == {"request": "repeat"}
    worker.close()
    # One that died is not.
    asked("repeat")
    [started] = [each.worker for each in _KEPT]
    os.kill(started.pid, signal.SIGKILL)
    while started.is_running:
        pass
    assert handed_on("repeat") is None
    assert kept() == []


# A policy that is lost is asked again a few times, but not one that is late, and not another one in its place.

LOST = (ConnectionError, TimeoutError, EOFError)


def policy_asked(*answers: Exception | int, most_losses: int = 3) -> int:
    """Ask a policy elsewhere that answers so, one answer after the other."""
    left = list(answers)

    def ask() -> int:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    policy = PolicyElsewhere[str]("the policy at home", most_losses=most_losses)
    return policy.asked(ask, LOST, comes_back=lambda error: not isinstance(error, TimeoutError))


def test_a_question_over_which_a_policy_is_lost_is_asked_again(caplog):
    assert policy_asked(EOFError(), ConnectionError("cut"), 3) == 3
    assert all(cause in caplog.text for cause in ("lost (EOFError)", "lost (cut)"))


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ((EOFError(), ConnectionError("gone"), 3), PolicyLostError, "at home .* 2 times .*: gone"),
        ((TimeoutError("timed out"), 3), PolicyLostError, "in time"),
        ((ZeroDivisionError(), 3), ZeroDivisionError, None),
    ],
    ids=["lost_again_and_again", "late", "no_loss"],
)
def test_what_ends_a_policy_again_and_again_is_late_or_no_loss_is_not_asked_on(answers, error, message):
    with pytest.raises(error, match=message):
        policy_asked(*answers, most_losses=2)


def test_another_policy_in_the_place_of_the_first_is_refused():
    policy = PolicyElsewhere[str]("the policy at home")
    for _ in range(2):
        policy.meet("first")
    with pytest.raises(PolicyLostError, match="stated first and states other"):
        policy.meet("other")
    assert policy.stated == "first"
    with pytest.raises(PolicyLostError, match="stated earlier and states other"):
        PolicyElsewhere("the policy at home", stated="earlier").meet("other")


def test_patience_ends_before_the_process_does():
    assert patience_s(300.0) == 300.0
    with ended_in(lambda: 100.0):
        assert patience_s(300.0) == 85.0
        assert patience_s(30.0) == 30.0
    with ended_in(lambda: 4.0):
        assert patience_s(300.0) == 2.0
