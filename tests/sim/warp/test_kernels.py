"""Kernels: numbers, compilation, launches."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import torch
import warp

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.logs import KERNELS, KernelTimes, module_times
from isaaclab_arena.sim.warp_kernels import (
    Launcher,
    check_driver,
    check_same_gpu,
    cpu_turn,
    one_compiler_at_a_time,
    stderr_without,
    warp_device,
)
from tests.sim.warp.fake_streams import between, fake_streams

GPU = torch.device("cuda:1")


@pytest.mark.parametrize(
    ("toolkit", "driver", "words"),
    [((13, 1), (12, 8), r"13\.0.*12\.8"), ((12, 9), None, r"12\.0.*none"), (None, (12, 8), "without CUDA.*'mujoco'")],
)
def test_a_driver_that_warp_cannot_use_is_an_error_with_the_version_that_it_needs(toolkit, driver, words):
    check_driver((12, 9), (12, 0))
    check_driver((12, 9), (13, 0))
    with pytest.raises(EnvironmentBuildError, match=words):
        check_driver(toolkit, driver)


def test_torch_and_warp_have_to_mean_the_same_gpu():
    check_same_gpu(GPU, "00000000:3b:00", "00000000:3B:00")
    with pytest.raises(EnvironmentBuildError, match="cuda:1"):
        check_same_gpu(GPU, "00000000:3B:00", "00000000:18:00")
    assert callable(warp_device(CPU).runtime.core.wp_cuda_device_graph_mem_trim), "what gives back memory of graphs"


def test_who_is_stopped_while_waiting_to_compile_waits_again_next_time_and_may_ask_twice(monkeypatch):
    def stopped(file, kind):
        raise KeyboardInterrupt

    with monkeypatch.context() as waiting:
        waiting.setattr(fcntl, "flock", stopped)
        with pytest.raises(KeyboardInterrupt), one_compiler_at_a_time():
            pass
    locked = []
    monkeypatch.setattr(fcntl, "flock", lambda file, kind: locked.append(kind))
    with one_compiler_at_a_time(), one_compiler_at_a_time():
        assert locked == [fcntl.LOCK_EX | fcntl.LOCK_NB]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO], ids=errno.errorcode.get)
def test_kernels_are_compiled_without_a_lock_where_the_file_system_has_none(monkeypatch, number):
    def no_locks(file, kind):
        raise OSError(number, "")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with one_compiler_at_a_time():
        pass


def test_one_line_of_native_code_is_left_out_and_no_other_also_when_it_raises(capfd):
    def fail() -> None:
        with stderr_without(b"no driver"):
            os.write(2, b"before\nWarning: there is no driver here\nafter\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "before\nafter\nlater\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_starting_warp_without_a_gpu_says_nothing():
    code = "import torch; from isaaclab_arena.sim.warp_kernels import warp_device; warp_device(torch.device('cpu'))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (finished.stdout, finished.stderr) == ("", "")


def test_of_two_that_need_kernels_one_compiles_while_the_other_waits():
    warp_device(CPU)
    before = KERNELS.times
    # As another process holds it.
    with Path(str(warp.config.kernel_cache_dir), "isaaclab_arena.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiter = Thread(target=lambda: one_compiler_at_a_time().__enter__())
        waiter.start()
        waiter.join(0.2)
        assert waiter.is_alive()
    waiter.join()
    assert KERNELS.times.since(before).wait_s >= 0.1


@pytest.mark.gpu
def test_torch_and_warp_mean_the_same_gpu_here():
    for index in range(torch.cuda.device_count()):
        assert warp_device(torch.device("cuda", index)).ordinal == index


LINE = "Module mujoco_warp._src.forward 68fa608 load on device 'cuda:0' took 1500.00 ms"


@pytest.mark.parametrize(
    ("end", "times"),
    [
        ("  (compiled)", KernelTimes(compile_s=1.5)),
        ("  (cached)", KernelTimes(load_s=1.5)),
        ("  (error)", KernelTimes()),
        (" initialized:", KernelTimes()),
    ],
)
def test_warp_says_how_long_a_module_took_and_whether_it_was_compiled(end, times):
    assert module_times(f"    {LINE}{end}") == times


# Which stream Warp works in, and graphs: captured and replayed on the CPU, in streams that only take notes.

CPU = torch.device("cpu")


@warp.kernel
def double(numbers: warp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]  Warp's own way to say it
    index = warp.tid()
    numbers[index] = 2.0 * numbers[index]


class Worker:
    """Doubles ``numbers`` in fake streams, whose ``notes`` say what happened in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.numbers = warp.ones(2, dtype=float, device="cpu")
        self.launcher = Launcher(CPU, streams=fake_streams(self.notes))

    def launch(self) -> None:
        self.notes.append("launch")
        warp.launch(double, dim=2, inputs=[self.numbers], device="cpu")

    def noted(self, call: Callable[[], object]) -> list[str]:
        """Events during a call."""
        self.notes.clear()
        call()
        return list(self.notes)

    def replay(self) -> list[str]:
        return self.noted(lambda: self.launcher.replay("double", self.launch))


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_graph_is_captured_after_a_launch_and_replayed_in_a_stream_of_its_own_until_it_is_forgotten(worker):
    assert worker.replay() == between("blocking", "launch"), "Warp may free what it needs for a moment"
    assert worker.numbers.numpy().tolist() == [2.0, 2.0]
    assert worker.replay() == between("independent", "launch")
    others = warp.ones(2, dtype=float, device="cpu")
    for _ in range(3):
        worker.launcher.replay("others", lambda: warp.launch(double, dim=2, inputs=[others], device="cpu"))
    assert worker.replay() == between("independent")
    assert worker.numbers.numpy().tolist() == others.numpy().tolist() == [8.0, 8.0]
    worker.launcher.forget_graphs()
    assert worker.replay() == between("blocking", "launch")


def test_what_may_be_compiled_is_ordered_with_torch_too(worker):
    def compile_and_launch() -> None:
        with worker.launcher.compiling():
            worker.launch()

    assert worker.noted(compile_and_launch) == between("blocking", "launch")


def test_a_capture_waits_for_threads_that_use_warp(worker):
    captured: list[str] = []
    launcher = Launcher(CPU, capture=lambda work: captured.append("captured") or work)
    assert launcher.capture is not None
    assert Launcher(CPU).capture is None
    worker.replay()
    for turn, capture in (
        (cpu_turn(), Thread(target=worker.replay)),
        (launcher.work(), Thread(target=launcher.capture, args=(lambda: None,))),
    ):
        with turn:
            capture.start()
            capture.join(0.2)
            assert (capture.is_alive(), captured) == (True, [])
        capture.join()
    assert worker.numbers.numpy().tolist() == [4.0, 4.0]
    assert captured == ["captured"]
