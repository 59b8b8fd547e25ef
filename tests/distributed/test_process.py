import os
import subprocess
import sys
import time

import pytest
import torch

from isaaclab_arena.distributed.process import limit_threads, process_is_running, process_start_ticks

CHILD_OF_A_LAUNCHER = """
import time
from isaaclab_arena.distributed.process import die_with_parent
print(die_with_parent(), flush=True)
time.sleep(60)
"""
LAUNCHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(60)
"""


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process_start_ticks(pid) is None:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_a_rank_does_not_outlive_a_killed_launcher():
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, CHILD_OF_A_LAUNCHER], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        lines = {launcher.stdout.readline().strip(), launcher.stdout.readline().strip()}
        assert "True" in lines
        child = int((lines - {"True"}).pop())
        assert process_start_ticks(child) is not None
        launcher.kill()
        assert wait_until_gone(child, timeout_s=3.0)


def test_a_process_is_known_by_its_number_and_its_start():
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    assert process_is_running(os.getpid(), ticks)
    assert not process_is_running(os.getpid(), ticks + 1)
    assert process_is_running(os.getpid(), None)


def test_a_process_that_has_ended_is_not_running_though_nobody_collected_it():
    with subprocess.Popen(["true"]) as process:
        assert wait_until_gone(process.pid, timeout_s=5.0)
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
