import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from isaaclab_arena.distributed.context import limit_threads, process_is_running, process_start_ticks
from tests.end_to_end.launching import ROOT, environment

CHILD_THAT_OBEYS = """
import time
from isaaclab_arena.distributed.context import die_with_parent
print(die_with_parent(), flush=True)
time.sleep(600)
"""
CHILD_THAT_IS_BUSY = """
import signal, time
from isaaclab_arena.distributed.context import die_with_parent
signal.signal(signal.SIGTERM, lambda number, frame: None)
print(die_with_parent(grace_s=1.0), flush=True)
while True:
    time.sleep(600)
"""
CHILD_THAT_ASKS_LATE = """
import os, time
from isaaclab_arena.distributed.context import die_with_parent
parent = os.getppid()
print(True, flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
die_with_parent(grace_s=600.0)
time.sleep(600)
"""
LAUNCHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(600)
"""


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process_start_ticks(pid) is None:
            return True
        time.sleep(0.02)
    return False


def child_of_killed_launcher(program: str) -> int:
    """Start a launcher and its child, kill the launcher once both have spoken, and return the child's number."""
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, program], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        lines = {launcher.stdout.readline().strip(), launcher.stdout.readline().strip()}
        assert "True" in lines
        child = int((lines - {"True"}).pop())
        assert process_start_ticks(child) is not None
        launcher.kill()
    return child


on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death"
)


@on_linux
def test_a_rank_does_not_outlive_a_killed_launcher():
    assert wait_until_gone(child_of_killed_launcher(CHILD_THAT_OBEYS), timeout_s=60.0)


@on_linux
def test_a_rank_that_goes_on_after_the_signal_leaves_soon_all_the_same():
    child = child_of_killed_launcher(CHILD_THAT_IS_BUSY)
    time.sleep(0.3)
    assert process_start_ticks(child) is not None
    assert wait_until_gone(child, timeout_s=60.0)


@on_linux
def test_a_rank_whose_launcher_died_before_it_asked_leaves_too():
    if b"python" in Path("/proc/1/cmdline").read_bytes():
        pytest.skip("here orphans get a Python program for a parent")
    assert wait_until_gone(child_of_killed_launcher(CHILD_THAT_ASKS_LATE), timeout_s=60.0)


def test_a_process_is_known_by_its_number_and_its_start():
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    assert process_is_running(os.getpid(), ticks)
    assert not process_is_running(os.getpid(), ticks + 1)
    assert process_is_running(os.getpid(), None)


@on_linux
def test_a_process_knows_how_old_it_is():
    program = "from isaaclab_arena.distributed.context import process_age_s; print(process_age_s())"
    began = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    taken_s = time.perf_counter() - began
    assert 0 < float(output) <= taken_s + 0.02


def test_a_process_that_has_ended_is_not_running_though_nobody_collected_it():
    with subprocess.Popen(["true"]) as process:
        assert wait_until_gone(process.pid, timeout_s=60.0)
    assert not process_is_running(process.pid, None)


def test_one_thread_unless_told_otherwise():
    before = torch.get_num_threads()
    try:
        limit_threads()
        assert torch.get_num_threads() == 1
        limit_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def left_with_a_busy_thread(last_words: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys, threading, time\n"
        "from isaaclab_arena.distributed.context import leave_process, leave_process_on_error\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        f"{last_words}\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_a_process_that_leaves_has_said_everything_and_keeps_its_exit_code():
    left = left_with_a_busy_thread("sys.stdout.write('the last word'); leave_process(3)")
    assert (left.returncode, left.stdout, left.stderr) == (3, "the last word", "")


def test_a_process_that_leaves_on_an_error_shows_where_it_was_and_waits_for_nobody():
    left = left_with_a_busy_thread("leave_process_on_error(); [][0]")
    assert left.returncode == 1
    assert left.stderr.startswith("Traceback")
    assert left.stderr.endswith("IndexError: list index out of range\n")


def test_threads_that_nobody_limits_are_limited_here():
    script = (
        "from isaaclab_arena.distributed.context import limit_threads\nlimit_threads(1)\n"
        "import torch\nprint(torch.get_num_threads())"
    )
    plain = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=plain, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "1"
