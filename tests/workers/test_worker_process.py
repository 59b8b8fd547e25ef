"""Worker processes and the frames they exchange."""

import ast
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.distributed.context import process_is_running, process_start_ticks, variables_of_child
from isaaclab_arena.workers import (
    _KEPT,
    RequestError,
    WorkerError,
    WorkerProcess,
    ask_kept_worker,
    program,
    stop_kept_workers,
    taken_worker,
    which_worker,
)

# Workers answer in time or are stopped, need little, and leave nothing behind.


ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake" / "answers.py"


def worker(python_path: Path | None = None) -> WorkerProcess:
    return WorkerProcess(FAKE, sys.executable, {"PYTHONPATH": str(python_path)} if python_path else {})


def test_an_answer_is_that_to_the_request_whatever_the_worker_prints():
    asked = worker()
    for number in range(3):
        message, arrays = asked.ask({"request": "repeat", "number": number}, 60, {"x": np.full(2, number)})
        assert message["number"] == number
        assert arrays["x"].tolist() == [number, number]
    asked.close()


def test_no_module_beside_the_program_shadows_a_package_even_through_a_link(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "worker_process.py").touch()
    (tmp_path / "isaaclab_arena").symlink_to(ROOT / "isaaclab_arena")
    asks = f"""
from isaaclab_arena.workers import WorkerProcess
asked = WorkerProcess({str(FAKE)!r}, {sys.executable!r}, {{"PYTHONPATH": {str(packages)!r}}})
print(asked.ask({{"request": "import", "name": "worker_process"}}, 60)[0]["file"])
asked.close()
"""
    ended = subprocess.run([sys.executable, "-c", asks], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(packages / "worker_process.py")


def test_a_worker_that_dies_is_told_with_what_it_last_wrote():
    with pytest.raises(WorkerError, match=r"(?s)died with exit code 3.*the roof came down"):
        worker().ask({"request": "die"}, 60)


def test_a_worker_that_is_killed_is_told_with_the_signal():
    asked = worker()
    os.kill(asked.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="died by signal 9"):
        asked.ask({"request": "repeat"}, 60)


def test_a_worker_that_falls_silent_is_stopped():
    asked = worker()
    asked.ask({"request": "repeat"}, 60)
    with pytest.raises(WorkerError, match=r"did not answer within 0\.5 s"):
        asked.ask({"request": "hang"}, 0.5)
    assert not process_is_running(asked.pid, None)


MUDDLER = """#!{python}
import os, sys
sys.path.insert(0, "{root}")
from isaaclab_arena.workers import program

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
    path.write_text(MUDDLER.format(python=sys.executable, root=ROOT))
    path.chmod(0o755)
    return WorkerProcess(FAKE, str(path), {})


def test_an_answer_that_comes_twice_is_not_taken_for_that_to_the_next_request(muddler):
    assert muddler.ask({"request": "doubled"}, 60) == ({"request": "doubled"}, {})
    with pytest.raises(WorkerError, match=r"answered nonsense \(the answer to request 1 came to request 2\)"):
        muddler.ask({"request": "plain"}, 60)
    assert not process_is_running(muddler.pid, None)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("too large", "brings the frame to 2400000000 bytes; 1073741824 are allowed"),
        ("too long", "where a frame should begin"),
        ("of another", "the answer to request 7 came to request 1"),
    ],
)
def test_an_answer_that_is_too_large_or_of_another_request_is_not_read(muddler, request_, message):
    with pytest.raises(WorkerError, match=f"answered nonsense.*{message}"):
        muddler.ask({"request": request_}, 60, {"x": np.zeros(3)})


def test_what_is_raised_there_comes_with_its_traceback_and_the_worker_lives():
    asked = worker()
    with pytest.raises(RequestError, match="OSError: the floor gave way") as told:
        asked.ask({"request": "raise"}, 60)
    assert told.value.kind == "other"
    with pytest.raises(RequestError, match="No module named 'no_such'") as told:
        asked.ask({"request": "import", "name": "no_such"}, 60)
    assert told.value.kind == "import"
    assert "answers.py" in told.value.traceback
    asked.close()


def test_modules_of_the_worker_shadow_no_module_of_the_same_name(tmp_path):
    for name in ("program", "answers"):
        (tmp_path / f"{name}.py").touch()
    asked = worker(python_path=tmp_path)
    for name in ("program", "answers"):
        assert asked.ask({"request": "import", "name": name}, 60)[0] == {"file": str(tmp_path / f"{name}.py")}
    asked.close()


def test_a_worker_of_a_process_that_was_told_where_to_look_for_modules_does_not_look_there(tmp_path, monkeypatch):
    (tmp_path / "of_this_interpreter.py").touch()
    for name, value in variables_of_child([str(tmp_path)], {}).items():
        monkeypatch.setenv(name, value)
    asked = worker()
    with pytest.raises(RequestError, match="of_this_interpreter"):
        asked.ask({"request": "import", "name": "of_this_interpreter"}, 60)
    asked.close()


def test_memory_is_shared():
    asked = worker()
    descriptor = asked.share(16)
    asked.ask({"request": "write"}, 60)
    assert os.pread(descriptor, 16, 0) == b"\0\0\0\0seen" + bytes(8)
    asked.close()


def test_closing_twice_leaves_no_process():
    asked = worker()
    asked.close()
    asked.close()
    assert not process_is_running(asked.pid, None)


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
    script = (
        "import time\n"
        "from tests.workers.test_worker_process import worker\n"
        "asked = worker()\n"
        "asked.ask({'request': 'repeat'}, 60)\n"
        "asked.send({'request': 'hang'})\n"
        "print(asked.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    started = process_start_ticks(pid)
    assert started is not None
    program.kill()
    program.wait()
    program.stdout.close()
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


def read_from(data: bytes) -> Callable[[int], bytes]:
    """Reader that returns as many bytes as `program.decode` asks for."""
    position = 0

    def read_exactly(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    return read_exactly


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", ">f8", "?"])
def test_a_frame_brings_arrays_as_they_were(dtype):
    sent = (np.arange(12).reshape(3, 4) % 7).astype(dtype)
    message, arrays = program.decode(read_from(program.encode({"a": [1, None]}, {"x": sent, "empty": sent[:0]})))
    assert message == {"a": [1, None]}
    assert np.array_equal(arrays["x"], sent)
    assert arrays["x"].dtype == np.dtype(dtype).newbyteorder("<")
    assert arrays["empty"].shape == (0, 4)


def test_a_frame_that_says_nothing_is_always_the_same():
    assert program.encode({}, {}) == program.EMPTY
    assert program.decode(read_from(program.EMPTY)) == ({}, {})


def test_only_numbers_travel():
    with pytest.raises(program.FrameError, match="only numbers travel"):
        program.encode({}, {"x": np.array([None])})


@pytest.mark.parametrize(
    ("layout", "message"),
    [(["|O", [1]], "claims to be"), (["<f4", [-1]], "claims to be"), (["<f8", [1 << 20, 1 << 20]], "are allowed")],
)
def test_a_frame_that_lies_is_refused(layout, message):
    honest = program.encode({}, {"x": np.zeros(1, np.float32)})
    header = honest[8:].replace(b'["x", "<f4", [1]]', f'["x", "{layout[0]}", {layout[1]}]'.encode())
    size = header.index(b"}", header.index(b"arrays")) + 1
    lying = honest[:4] + size.to_bytes(4, "little") + header
    with pytest.raises(program.FrameError, match=message):
        program.decode(read_from(lying))


def test_something_else_on_the_pipe_is_refused():
    with pytest.raises(program.FrameError, match="where a frame should begin"):
        program.decode(read_from(b"Traceback (most recent call last)"))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"message": {}, "arrays": [["x", "<U4", [1]]]}',
        b'{"message": {}, "arrays": [["x", "V8", [1]]]}',
        b'{"message": {}, "arrays": [["x", [["a", "O"]], [1]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [true]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [1e3]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [0, 1000000000000000000000000]]]}',
        b'{"message": {}, "arrays": 3}',
        b"not json",
        b"\x80\x04\x95",
    ],
)
def test_a_frame_of_nonsense_is_refused_and_nothing_is_unpickled(header):
    frame = b"ARN1" + len(header).to_bytes(4, "little") + header + b"\0" * 64
    with pytest.raises((program.FrameError, ValueError, KeyError, TypeError)):
        program.decode(read_from(frame))


def test_a_frame_larger_than_any_header_is_not_waited_for():
    with pytest.raises(program.FrameError):
        program.decode(read_from(b"ARN1" + np.uint32(program.MAX_HEADER_BYTES + 1).tobytes()))


def asked(request: str, python: str = sys.executable) -> dict:
    return ask_kept_worker(FAKE, python, {}, {"request": request}, timeout_s=60)[0]


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
