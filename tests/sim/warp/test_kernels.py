"""Kernels: numbers, compilation, launches."""

import errno
import fcntl
import json
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
from isaaclab_arena.logs import KernelLedger, KernelTimes, module_times
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


def test_torch_and_warp_have_to_mean_the_same_gpu():
    check_same_gpu(GPU, "00000000:3b:00", "00000000:3B:00")
    with pytest.raises(EnvironmentBuildError, match="cuda:1"):
        check_same_gpu(GPU, "00000000:3B:00", "00000000:18:00")


@pytest.mark.parametrize(
    ("toolkit", "driver", "words"),
    [
        ((13, 1), (12, 8), ("13.0", "12.8")),
        ((12, 9), None, ("12.0", "none")),
        (None, (12, 8), ("without CUDA", "'mujoco'")),
    ],
)
def test_a_driver_that_warp_cannot_use_is_an_error_with_the_version_that_it_needs(toolkit, driver, words):
    check_driver((12, 9), (12, 0))
    check_driver((12, 9), (13, 0))
    with pytest.raises(EnvironmentBuildError) as caught:
        check_driver(toolkit, driver)
    assert all(word in str(caught.value) for word in words)


def test_warp_still_has_what_gives_back_the_memory_of_graphs():
    device = warp_device(torch.device("cpu"))
    assert callable(device.runtime.core.wp_cuda_device_graph_mem_trim)


def test_who_compiles_may_ask_to_compile_once_more():
    with one_compiler_at_a_time(), one_compiler_at_a_time():
        pass
    with one_compiler_at_a_time():
        pass


def test_who_is_stopped_while_waiting_to_compile_waits_again_next_time(monkeypatch):
    def stopped(file, kind):
        raise KeyboardInterrupt

    with monkeypatch.context() as waiting:
        waiting.setattr(fcntl, "flock", stopped)
        with pytest.raises(KeyboardInterrupt), one_compiler_at_a_time():
            pass
    locked = []
    monkeypatch.setattr(fcntl, "flock", lambda file, kind: locked.append(kind))
    with one_compiler_at_a_time():
        assert locked == [fcntl.LOCK_EX | fcntl.LOCK_NB]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO], ids=errno.errorcode.get)
def test_kernels_are_compiled_without_a_lock_where_the_file_system_has_none(monkeypatch, number):
    def no_locks(file, kind):
        raise OSError(number, os.strerror(number))

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


def times_of(cache: Path, *names: str) -> list[KernelTimes]:
    """Compile time of each of several processes that need the same kernel at the same time."""
    directory = cache.parent / "-".join(names)
    directory.mkdir()
    command = [sys.executable, "-m", "tests.sim.warp.compiling", str(directory)]
    environ = {**os.environ, "WARP_CACHE_PATH": str(cache)}
    processes = [
        subprocess.Popen([*command, name, str(len(names))], env=environ, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    times = [KernelTimes(**json.loads(output.splitlines()[-1])) for output in outputs]
    return sorted(times, key=lambda each: each.compile_s, reverse=True)


@pytest.mark.slow
def test_of_two_processes_one_compiles_while_the_other_waits_and_the_next_run_finds_what_it_needs(tmp_path):
    compiler, waiter = times_of(tmp_path / "cache", "one", "other")
    assert compiler.compile_s > 0
    assert compiler.wait_s == compiler.load_s == 0
    assert waiter.compile_s == 0
    assert waiter.load_s > 0
    assert waiter.wait_s > 0
    (later,) = times_of(tmp_path / "cache", "later")
    assert later.compile_s == later.wait_s == 0
    assert 0 < later.load_s < compiler.compile_s


@pytest.mark.gpu
def test_torch_and_warp_mean_the_same_gpu_here():
    for index in range(torch.cuda.device_count()):
        assert warp_device(torch.device("cuda", index)).ordinal == index


LINE = "Module mujoco_warp._src.forward 68fa608 load on device 'cuda:0' took 1500.00 ms"


@pytest.mark.parametrize(
    ("message", "times"),
    [
        (f"{LINE}  (compiled)", KernelTimes(compile_s=1.5)),
        (f"    {LINE}  (cached)", KernelTimes(load_s=1.5)),
        (f"{LINE}  (error)", KernelTimes()),
        ("Warp 1.19.0 initialized:", KernelTimes()),
    ],
)
def test_warp_says_how_long_a_module_took_and_whether_it_was_compiled(message, times):
    assert module_times(message) == times


def test_what_is_reported_adds_up_and_differences_say_what_has_come_since():
    ledger = KernelLedger()
    ledger.add(KernelTimes(compile_s=1.0, wait_s=0.5))
    before = ledger.times
    ledger.add(KernelTimes(compile_s=2.0, load_s=0.25))
    assert ledger.times == KernelTimes(compile_s=3.0, load_s=0.25, wait_s=0.5)
    assert ledger.times.since(before) == KernelTimes(compile_s=2.0, load_s=0.25)
    assert ledger.times.total_s == 3.75


# Which stream Warp works in, and graphs: captured and replayed on the CPU, in streams that only take notes.

CPU = torch.device("cpu")


@warp.kernel
def double(numbers: warp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]  Warp's own way to say it
    index = warp.tid()
    numbers[index] = 2.0 * numbers[index]


class Worker:
    """Doubles numbers in fake streams.

    Attributes:
        notes: What happened, in order.
        numbers: What is doubled.
    """

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


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_the_first_time_is_launched_where_warp_may_free_what_it_needs_for_a_moment(worker):
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("blocking", "launch")
    assert worker.numbers.numpy().tolist() == [2.0, 2.0]


def test_a_graph_is_captured_and_replayed_where_no_other_thread_is_in_its_way_until_it_is_forgotten(worker):
    worker.launcher.replay("double", worker.launch)
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("independent", "launch")
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("independent")
    assert worker.numbers.numpy().tolist() == [8.0, 8.0]
    worker.launcher.forget_graphs()
    worker.numbers = warp.ones(2, dtype=float, device="cpu")
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("blocking", "launch")
    worker.launcher.replay("double", worker.launch)
    assert worker.numbers.numpy().tolist() == [4.0, 4.0]


def test_what_may_be_compiled_is_ordered_with_torch_too(worker):
    def compile_and_launch() -> None:
        with worker.launcher.compiling():
            worker.launch()

    assert worker.noted(compile_and_launch) == between("blocking", "launch")


def test_each_kind_of_work_has_a_graph_of_its_own(worker):
    others = warp.ones(2, dtype=float, device="cpu")
    for _ in range(3):
        worker.launcher.replay("double", worker.launch)
        worker.launcher.replay("double others", lambda: warp.launch(double, dim=2, inputs=[others], device="cpu"))
    assert worker.numbers.numpy().tolist() == others.numpy().tolist() == [8.0, 8.0]


def test_a_capture_waits_for_threads_that_use_warp_on_the_cpu(worker):
    worker.launcher.replay("double", worker.launch)
    capture = Thread(target=worker.launcher.replay, args=("double", worker.launch))
    with cpu_turn():
        capture.start()
        capture.join(0.2)
        assert capture.is_alive()
    capture.join()
    assert worker.numbers.numpy().tolist() == [4.0, 4.0]


def test_torchs_work_is_captured_while_no_other_thread_works_with_warp():
    captured: list[str] = []
    launcher = Launcher(CPU, capture=lambda work: captured.append("captured") or work)
    assert launcher.capture is not None
    assert Launcher(CPU).capture is None
    capture = Thread(target=launcher.capture, args=(lambda: None,))
    with launcher.work():
        capture.start()
        capture.join(0.2)
        assert capture.is_alive()
        assert captured == []
    capture.join()
    assert captured == ["captured"]
