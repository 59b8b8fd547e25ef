"""Ends of a rank: interrupted, killed, or hanging."""

import os
import signal
import subprocess
import sys
import time

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.process import Watchdog, watch_as_guest, watch_for_interruption

STUBBORN_LOOP = """
import sys, time
from isaaclab_arena.evaluation.process import watch_for_interruption
with watch_for_interruption() as interruption:
    print("looping", flush=True)
    while not interruption.stop_requested():
        time.sleep(0.01)
    print("stopping", flush=True)
    time.sleep(float(sys.argv[1]))
sys.exit(interruption.exit_code)
"""


@pytest.mark.parametrize(
    ("sent", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 128 + signal.SIGUSR1)],
)
def test_one_signal_asks_the_loop_to_stop(sent, exit_code):
    before = signal.getsignal(sent)
    with watch_for_interruption() as interruption:
        assert not interruption.stop_requested()
        assert interruption.exit_code == 0
        os.kill(os.getpid(), sent)
        assert interruption.stop_requested()
        assert interruption.signal_number == sent
        assert interruption.exit_code == exit_code
    assert signal.getsignal(sent) is before


@pytest.mark.parametrize(
    ("first", "then_s", "dawdle_s", "exit_code"),
    [
        # The same signal sent twice is one request; after half a second a second one ends the process at once.
        (signal.SIGTERM, 0.0, 0.3, 143),
        pytest.param(signal.SIGINT, 0.6, 600.0, 143, marks=pytest.mark.slow),
        # A warning before the time limit, and then its end.
        (signal.SIGUSR1, 0.6, 600.0, 143),
    ],
)
def test_a_second_signal_ends_the_process_at_once(first, then_s, dawdle_s, exit_code):
    command = [sys.executable, "-c", STUBBORN_LOOP, str(dawdle_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looping\n"
        process.send_signal(first)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(then_s)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=60) == exit_code
        finally:
            process.kill()


def test_a_guest_hands_a_second_signal_to_whoever_listened_before():
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with watch_as_guest() as interruption:
            signal.raise_signal(signal.SIGUSR1)
            assert (interruption.signal_number, heard) == (signal.SIGUSR1, [])
            time.sleep(0.6)
            signal.raise_signal(signal.SIGUSR1)
            assert heard == [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


# A step that hangs ends the process, also in native code that holds the interpreter; steps that go on do not, nor does
# a job that is over.


def test_a_watch_keeps_the_words_of_an_earlier_process_and_leaves_none_itself_also_of_a_job_that_fails(tmp_path):
    path = tmp_path / "watchdog.txt"
    with pytest.raises(ZeroDivisionError), Watchdog(path).guard("lift", silence_s=9.0):
        raise ZeroDivisionError
    with Watchdog(path).guard("lift", silence_s=0.0):
        assert not path.exists(), "any silence is allowed"
    path.write_text("job 'reach' has made no control step for 9 s:\n...\n")
    with Watchdog(path).guard("lift", silence_s=9.0):
        assert "job 'lift'" in path.read_text()
    assert path.read_text() == "job 'reach' has made no control step for 9 s:\n...\n"


def test_last_words_that_cannot_be_written_are_a_storage_error(tmp_path):
    (tmp_path / "logs").write_text("no directory")
    watched = Watchdog(tmp_path / "logs" / "watchdog.txt").guard("lift", silence_s=9.0)
    with pytest.raises(StorageError, match=r"cannot write .*watchdog\.txt"), watched:
        pass
