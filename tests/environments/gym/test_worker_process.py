"""Workers answer in time or are stopped, need little, and leave nothing behind."""

import ast
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.distributed.process import process_is_running, process_start_ticks
from isaaclab_arena.environments.gym.env_slots import SlotSource
from isaaclab_arena.environments.gym.worker import frames
from isaaclab_arena.environments.gym.worker_process import (
    _KEPT,
    SCRIPT_DIRECTORY,
    RequestError,
    WorkerError,
    WorkerProcess,
    ask_kept_worker,
    stop_kept_workers,
)
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import read_from

ROOT = Path(__file__).parents[3]


def ready_with_arrays(
    name: str = ID, python_path: Path = ROOT, **make_kwargs
) -> tuple[WorkerProcess, Mapping[str, np.ndarray]]:
    """Return a worker whose environment, the fake one by default, has been reset, and the arrays that it shows."""
    worker = WorkerProcess(sys.executable, {"PYTHONPATH": f"{python_path}{os.pathsep}{ROOT}"})
    request = SlotSource(kind="gym", name=name, make_kwargs=make_kwargs).request()
    description, _ = worker.ask({"request": "make", "slots": [0], "num_slots": 1, **request}, timeout_s=60)
    shared = worker.share(description, 1)
    starts = [{"seed": 1, "options": None}]
    worker.ask({"request": "reset", "slots": [0], "starts": starts, "pictures": [True]}, timeout_s=60)
    return worker, shared.arrays


def ready(name: str = ID, python_path: Path = ROOT, **make_kwargs) -> WorkerProcess:
    """Return a worker whose environment, the fake one by default, has been reset."""
    return ready_with_arrays(name, python_path, **make_kwargs)[0]


def step(worker: WorkerProcess, timeout_s: float = 60.0, *, pictures: bool = True):
    """Return what is to be said of an environment's step beside what it shows."""
    request = {"request": "step", "slots": [0], "pictures": [pictures]}
    return worker.ask(request, timeout_s, {"actions": np.zeros((1, 2), np.float32)})[0]["notes"].get("0", {})


def test_a_worker_that_dies_is_told_with_what_it_last_wrote():
    worker = ready(misbehaviour="die", at_step=1)
    with pytest.raises(WorkerError, match=r"(?s)died with exit code 3.*the roof came down"):
        step(worker)


def test_a_worker_that_is_killed_is_told_with_the_signal():
    worker = ready()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="died by signal 9"):
        step(worker)


def test_a_worker_that_falls_silent_is_stopped():
    worker = ready(misbehaviour="hang", at_step=1)
    began_s = time.monotonic()
    with pytest.raises(WorkerError, match=r"did not answer within 0\.5 s"):
        step(worker, timeout_s=0.5)
    assert time.monotonic() - began_s < 10
    assert not process_is_running(worker.pid, None)


def test_what_an_environment_raises_comes_with_its_traceback_and_the_worker_lives():
    worker = ready(misbehaviour="raise", at_step=1)
    answer = step(worker)
    assert answer["error"] == "OSError: the floor gave way"
    assert "gym_fakes.py" in answer["traceback"]
    with pytest.raises(RequestError, match="No module named"):
        worker.ask({"request": "find", "source": "gym", "name": "no_such:Draw-v0", "make_kwargs": {}}, timeout_s=60)
    worker.close()


def test_an_environment_may_have_modules_that_are_called_like_those_of_the_worker(tmp_path):
    entry_point = "tests.environments.gym.gym_fakes:DrawEnvironment"
    (tmp_path / "frames.py").write_text(
        f"import gymnasium\ngymnasium.register('Own/Draw-v0', entry_point='{entry_point}', max_episode_steps=5)\n"
    )
    worker = ready("frames:Own/Draw-v0", python_path=tmp_path)
    step(worker)
    worker.close()


def test_pictures_that_nobody_wants_do_not_travel():
    worker, arrays = ready_with_arrays(picture=True)
    for pictures, clock_shown in ((False, 0), (True, 2)):
        assert step(worker, pictures=pictures) == {}
        assert (arrays["eye.front"] == clock_shown).all()
    assert arrays["numbers"][0, 1] == 2
    worker.close()


def test_closing_twice_leaves_no_process():
    worker = ready()
    worker.close()
    worker.close()
    assert not process_is_running(worker.pid, None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it notices once it is idle")
def test_a_worker_leaves_at_once_if_the_program_died_while_it_started():
    worker = subprocess.Popen([sys.executable, str(SCRIPT_DIRECTORY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    # A request that would take a while still waits in the pipe when the program dies.
    worker.stdin.write(frames.encode({"request": "make"}, {}))
    worker.stdin.close()
    assert worker.wait(timeout=60) == 1
    assert worker.stdout is not None
    assert worker.stdout.read() == b""


def test_a_worker_does_not_outlive_the_program_even_in_a_long_step():
    script = (
        "import numpy as np, sys, time\n"
        "from tests.environments.gym.test_worker_process import ready\n"
        "worker = ready(misbehaviour='hang', at_step=1)\n"
        "request = {'request': 'step', 'slots': [0], 'pictures': [True]}\n"
        "worker.send(request, {'actions': np.zeros((1, 2), np.float32)})\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    started = process_start_ticks(pid)
    assert started is not None
    program.kill()
    program.wait()
    program.stdout.close()
    deadline_s = time.monotonic() + 10
    while process_is_running(pid, started) and time.monotonic() < deadline_s:
        select.select([], [], [], 0.05)
    assert not process_is_running(pid, started)


def test_what_runs_in_other_interpreters_needs_only_numpy_and_gymnasium():
    allowed = {*sys.stdlib_module_names, "numpy", "gymnasium"}
    for path in SCRIPT_DIRECTORY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert {name.partition(".")[0] for name in names} <= allowed, path.name


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", ">f8", "?"])
def test_a_frame_brings_arrays_as_they_were(dtype):
    sent = (np.arange(12).reshape(3, 4) % 7).astype(dtype)
    message, arrays = frames.decode(read_from(frames.encode({"a": [1, None]}, {"x": sent, "empty": sent[:0]})))
    assert message == {"a": [1, None]}
    assert np.array_equal(arrays["x"], sent)
    assert arrays["x"].dtype == np.dtype(dtype).newbyteorder("<")
    assert arrays["empty"].shape == (0, 4)


def test_only_numbers_travel():
    with pytest.raises(frames.FrameError, match="only numbers travel"):
        frames.encode({}, {"x": np.array([None])})


@pytest.mark.parametrize(
    ("layout", "message"),
    [(["|O", [1]], "claims to be"), (["<f4", [-1]], "claims to be"), (["<f8", [1 << 20, 1 << 20]], "are allowed")],
)
def test_a_frame_that_lies_is_refused(layout, message):
    honest = frames.encode({}, {"x": np.zeros(1, np.float32)})
    header = honest[8:].replace(b'["x", "<f4", [1]]', f'["x", "{layout[0]}", {layout[1]}]'.encode())
    size = header.index(b"}", header.index(b"arrays")) + 1
    lying = honest[:4] + size.to_bytes(4, "little") + header
    with pytest.raises(frames.FrameError, match=message):
        frames.decode(read_from(lying))


def test_something_else_on_the_pipe_is_refused():
    with pytest.raises(frames.FrameError, match="where a frame should begin"):
        frames.decode(read_from(b"Traceback (most recent call last)"))


def found(name: str, python: str = sys.executable) -> dict:
    request = {"request": "find", "source": "gym", "name": name, "make_kwargs": {}}
    return ask_kept_worker(python, {}, request, timeout_s=60)


def kept() -> list[int]:
    return [worker.pid for worker in _KEPT.values()]


def test_one_worker_of_an_interpreter_answers_all_questions_until_it_is_stopped():
    stop_kept_workers()
    assert found("CartPole-v1")["max_episode_length"] == 500
    before = kept()
    with pytest.raises(RequestError, match="doesn't exist"):
        found("Nothing-v0")
    assert found("Acrobot-v1")["max_episode_length"] == 500
    assert kept() == before
    os.kill(before[0], signal.SIGKILL)
    assert found("CartPole-v1")["max_episode_length"] == 500
    assert len(kept()) == 1
    assert kept() != before
    stop_kept_workers()
    assert kept() == []


def test_an_interpreter_that_cannot_answer_is_not_kept():
    with pytest.raises(WorkerError):
        found("CartPole-v1", python="/bin/false")
    assert kept() == []
