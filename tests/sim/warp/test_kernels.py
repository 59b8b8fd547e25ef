import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.threads import KernelTimes
from isaaclab_arena.sim.warp_kernels import (
    check_driver,
    check_same_gpu,
    one_compiler_at_a_time,
    stderr_without,
    warp_device,
)

GPU = torch.device("cuda:1")


def test_the_cpu_is_the_cpu():
    assert warp_device(torch.device("cpu")).is_cpu


def test_torch_and_warp_have_to_mean_the_same_gpu():
    check_same_gpu(GPU, "00000000:3b:00", "00000000:3B:00")
    with pytest.raises(
        EnvironmentBuildError, match="torch's cuda:1 is the GPU at PCI 00000000:3B:00, and Warp's the one"
    ):
        check_same_gpu(GPU, "00000000:3B:00", "00000000:18:00")


@pytest.mark.parametrize(
    ("toolkit", "driver", "words"),
    [
        ((13, 1), (12, 8), "needs a driver for CUDA 13.0 or newer, and this one is for CUDA 12.8; update it, or use"),
        ((12, 9), None, "needs a driver for CUDA 12.0 or newer, and finds none; install one, or use the backend"),
        (None, (12, 8), "built without CUDA; install another wheel of warp-lang, or use the backend 'mujoco'"),
    ],
)
def test_a_driver_that_warp_cannot_use_is_an_error_with_the_version_that_it_needs(toolkit, driver, words):
    with pytest.raises(EnvironmentBuildError, match=words):
        check_driver(toolkit, driver)


def test_a_driver_of_the_same_major_version_is_new_enough():
    check_driver((12, 9), (12, 0))
    check_driver((12, 9), (13, 0))


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


def test_one_line_of_native_code_is_left_out_and_no_other(capfd):
    with stderr_without(b"no driver"):
        os.write(2, b"before\nWarning: there is no driver here\nafter\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "before\nafter\nlater\n"


def test_what_native_code_says_before_it_raises_is_shown(capfd):
    def fail() -> None:
        with stderr_without(b"no driver"):
            os.write(2, b"this is why\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert capfd.readouterr().err == "this is why\n"


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
