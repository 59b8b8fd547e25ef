import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from isaaclab_arena.evaluation.process import Interruption, signals_held_back, watch_as_guest, watch_for_interruption

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


def start_loop(dawdle_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN_LOOP, str(dawdle_s)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "looping\n"
    return process


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


def test_the_same_signal_sent_twice_is_one_request():
    with start_loop(dawdle_s=0.3) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_a_second_signal_ends_the_process_at_once():
    with start_loop(dawdle_s=600.0) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        time.sleep(0.6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_a_warning_before_the_time_limit_and_then_its_end_are_two_signals():
    with start_loop(dawdle_s=600.0) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        time.sleep(0.6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_a_warning_before_the_time_limit_alone_lets_the_loop_stop_by_itself():
    with start_loop(dawdle_s=0.1) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=60) == 128 + signal.SIGUSR1


def test_only_the_main_thread_can_listen():
    failures = []

    def listen() -> None:
        try:
            with watch_for_interruption():
                pass
        except ValueError as error:
            failures.append(str(error))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert len(failures) == 1


def test_an_interruption_can_be_asked_for_by_hand():
    interruption = Interruption()
    interruption.receive(signal.SIGTERM)
    assert interruption.stop_requested()


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


def test_a_guest_in_another_thread_listens_for_nothing():
    told = []

    def listen() -> None:
        with watch_as_guest() as interruption:
            told.append(interruption.stop_requested())

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert told == [False]


def test_a_signal_that_is_held_back_acts_at_the_end():
    done = []

    def work() -> None:
        with signals_held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
