"""A step that hangs ends the process, also in native code that holds the interpreter; a slow one does not."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.process import Watchdog

ROOT = Path(__file__).parents[3]
HANGING = """
import ctypes, sys, time
from pathlib import Path
from isaaclab_arena.evaluation.process import Watchdog
from isaaclab_arena.logs import set_up_console_logging

def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(60)

def let_it_go():
    time.sleep(600)

set_up_console_logging(0)
watchdog = Watchdog(Path(sys.argv[1]))
with watchdog.watch("lift", silence_s=0.5):
    for _ in range(3):
        watchdog.step_finished()
        time.sleep(0.2)
    {"holds": hold_the_interpreter, "lets_go": let_it_go}[sys.argv[2]]()
"""
GOING_ON = """
import sys, time
from pathlib import Path
from isaaclab_arena.evaluation.process import Watchdog

watchdog = Watchdog(Path(sys.argv[1]))
with watchdog.watch("lift", silence_s=2.0):
    for _ in range(12):
        time.sleep(0.2)
        watchdog.step_finished()
time.sleep(2.2)
"""


@pytest.mark.parametrize(("how", "place"), [("holds", "hold_the_interpreter"), ("lets_go", "let_it_go")])
def test_a_step_that_hangs_ends_the_process_and_leaves_word_of_where(tmp_path, how, place):
    path = tmp_path / "logs" / "rank0.watchdog.txt"
    finished = subprocess.run(
        [sys.executable, "-c", HANGING, path, how], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert finished.returncode == 1
    last_words = path.read_text()
    assert last_words.startswith("job 'lift' has made no control step for 0.5 s:\n")
    assert f"in {place}" in last_words
    announced = "job 'lift' has made no control step for 0.5 s; process" in finished.stderr
    assert announced == (how == "lets_go")


def test_steps_that_go_on_are_not_interrupted_and_leave_nothing_behind(tmp_path):
    path = tmp_path / "watchdog.txt"
    finished = subprocess.run(
        [sys.executable, "-c", GOING_ON, path], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert finished.returncode == 0, finished.stderr
    assert not path.exists()


def test_a_job_that_fails_leaves_nothing_behind_and_is_not_waited_for(tmp_path):
    path = tmp_path / "watchdog.txt"
    with pytest.raises(ValueError, match="no more"), Watchdog(path).watch("lift", silence_s=9.0):
        raise ValueError("no more")
    assert not path.exists()


def test_the_last_words_of_an_earlier_process_are_kept(tmp_path):
    path = tmp_path / "watchdog.txt"
    path.write_text("job 'reach' has made no control step for 9 s:\n...\n")
    with Watchdog(path).watch("lift", silence_s=9.0):
        assert path.read_text().endswith("...\njob 'lift' has made no control step for 9 s:\n")
    assert path.read_text().endswith("...\n")


def test_nothing_is_watched_where_any_silence_is_allowed(tmp_path):
    path = tmp_path / "watchdog.txt"
    watchdog = Watchdog(path)
    with watchdog.watch("lift", silence_s=0.0):
        watchdog.step_finished()
        assert not path.exists()


def test_last_words_that_cannot_be_written_are_a_storage_error(tmp_path):
    (tmp_path / "logs").write_text("no directory")
    watched = Watchdog(tmp_path / "logs" / "watchdog.txt").watch("lift", silence_s=9.0)
    with pytest.raises(StorageError, match=r"cannot write .*watchdog\.txt"), watched:
        pass


def test_watches_that_follow_one_another_share_a_thread_which_ends_after_them(tmp_path):
    watchdog, before = Watchdog(tmp_path / "stuck.txt"), set(threading.enumerate())
    threads: set[threading.Thread] = set()
    for _ in range(20):
        with watchdog.watch("lift", silence_s=60.0):
            threads |= set(threading.enumerate()) - before
    [thread] = threads
    thread.join(timeout=60.0)
    assert not thread.is_alive()
    with watchdog.watch("lift", silence_s=60.0):
        assert len(set(threading.enumerate()) - before) == 1
