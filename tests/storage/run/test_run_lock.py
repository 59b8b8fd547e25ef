import contextlib
import errno
import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.disk import RunLock

HOLD_AND_WAIT = """
import sys, time
from pathlib import Path
from isaaclab_arena.storage.disk import RunLock
lock = RunLock(Path(sys.argv[1])).hold(alone=True)
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_run_in_the_same_directory_is_refused(tmp_path):
    with RunLock(tmp_path).hold(alone=True), pytest.raises(ConfigError, match="another run is at work"):
        RunLock(tmp_path).hold(alone=True)


def test_ranks_of_one_run_share_it_and_keep_another_run_out(tmp_path):
    with RunLock(tmp_path).hold(alone=True) as first, RunLock(tmp_path) as second:
        first.hold(alone=False)
        second.hold(alone=False)
        first.release()
        with pytest.raises(ConfigError, match="another run is at work"):
            RunLock(tmp_path).hold(alone=True)


def test_a_lock_that_was_released_can_be_taken_again(tmp_path):
    lock = RunLock(tmp_path).hold(alone=True)
    lock.release()
    lock.release()
    RunLock(tmp_path).hold(alone=True).release()


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD_AND_WAIT, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError):
        RunLock(tmp_path).hold(alone=True)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    RunLock(tmp_path).hold(alone=True).release()


def test_a_program_that_a_run_starts_does_not_inherit_its_lock(tmp_path):
    with RunLock(tmp_path).hold(alone=True):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    try:
        assert _is_free_within(tmp_path, seconds=60.0)
    finally:
        child.kill()
        child.wait()


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    caplog.set_level("WARNING", logger="isaaclab_arena")
    RunLock(tmp_path).hold(alone=True).hold(alone=False).release()
    assert "cannot be locked on this file system" in caplog.text


def _is_free_within(directory: Path, *, seconds: float) -> bool:
    # A process that was just started drops what it must not inherit a moment after its parent goes on.
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ConfigError):
            RunLock(directory).hold(alone=True).release()
            return True
        time.sleep(0.01)
    return False
