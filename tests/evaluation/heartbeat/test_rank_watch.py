import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from isaaclab_arena.distributed.context import machine_identity, process_start_ticks
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankState,
    RankStatus,
    RankWatch,
    StatusPublisher,
    wait_for_ranks,
    write_rank_status,
)

PUBLISHING_PROCESS = """
import sys, time
from pathlib import Path
from isaaclab_arena.evaluation.heartbeat import RankStatus, RankState
from isaaclab_arena.evaluation.heartbeat import StatusPublisher
with StatusPublisher(Path(sys.argv[1]), RankStatus.of_this_process(rank=1, run_id="run"), interval_s=0.1) as publisher:
    publisher.start_job("lift")
    print("running", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def status_of(rank: int, **changes) -> RankStatus:
    return dataclasses.replace(RankStatus.of_this_process(rank=rank, run_id="run"), **changes)


def watch_over(directory, world_size: int, clock=time.monotonic) -> RankWatch:
    return RankWatch(directory, world_size=world_size, run_id="run", clock=clock)


def fates(reports) -> list[RankFate]:
    return [report.fate for report in reports]


def test_each_final_state_is_a_fate(directory):
    for rank, state in enumerate(
        (RankState.STARTING, RankState.RUNNING, RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED)
    ):
        write_rank_status(directory, status_of(rank, state=state))
    assert fates(watch_over(directory, 5).look()) == [
        RankFate.WORKING,
        RankFate.WORKING,
        RankFate.FINISHED,
        RankFate.INTERRUPTED,
        RankFate.FAILED,
    ]


def test_a_process_whose_number_was_used_again_is_dead(directory):
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    write_rank_status(directory, status_of(0, state=RankState.RUNNING, start_ticks=ticks - 1))
    assert fates(watch_over(directory, 1).look()) == [RankFate.DEAD]


def test_a_process_that_left_without_finishing_is_dead(directory):
    write_rank_status(directory, status_of(0, state=RankState.RUNNING, exited=True))
    assert fates(watch_over(directory, 1).look()) == [RankFate.DEAD]


def test_a_rank_that_says_nothing_is_given_time_and_then_dead(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    assert fates(watch.look()) == [RankFate.WORKING]
    clock.now_s = 19.0
    assert fates(watch.look()) == [RankFate.WORKING]
    clock.now_s = 21.0
    assert fates(watch.look()) == [RankFate.DEAD]
    write_rank_status(directory, status_of(0))
    assert fates(watch.look()) == [RankFate.WORKING]


def test_a_rank_of_another_machine_lives_while_its_beat_goes_on(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    elsewhere = status_of(0, state=RankState.RUNNING, machine="another machine", pid=1, updated_at="1970-01-01")
    for beat in range(5):
        write_rank_status(directory, dataclasses.replace(elsewhere, beat=beat))
        assert fates(watch.look()) == [RankFate.WORKING]
        clock.now_s += 59.0
    assert fates(watch.look()) == [RankFate.WORKING]
    clock.now_s += 2.0
    assert fates(watch.look()) == [RankFate.DEAD]


def test_a_killed_process_is_seen_as_dead_at_once_though_nobody_collected_it(directory):
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHING_PROCESS, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        write_rank_status(directory, status_of(0, state=RankState.FINISHED))
        watch = watch_over(directory, 2)
        assert fates(watch.look()) == [RankFate.FINISHED, RankFate.WORKING]
        process.send_signal(signal.SIGSTOP)
        assert fates(watch.look()) == [RankFate.FINISHED, RankFate.WORKING], "a stopped process may go on"
        process.kill()
        reports = wait_for_ranks(watch, interval_s=0.05)
    assert fates(reports) == [RankFate.FINISHED, RankFate.DEAD]
    assert reports[1].status is not None
    assert reports[1].status.current_job == "lift"


def test_waiting_goes_on_until_the_slowest_rank_has_finished(directory):
    write_rank_status(directory, status_of(0, state=RankState.FINISHED))
    looks = []
    with StatusPublisher(directory, status_of(1)) as publisher:
        finishing = threading.Timer(0.5, publisher.set_state, (RankState.FINISHED,))
        finishing.start()
        reports = wait_for_ranks(watch_over(directory, 2), on_look=looks.append, interval_s=0.05)
    assert fates(reports) == [RankFate.FINISHED, RankFate.FINISHED]
    assert len(looks) > 3
    assert fates(looks[0]) == [RankFate.FINISHED, RankFate.WORKING]


def test_waiting_ends_after_a_request_to_stop(directory):
    write_rank_status(directory, status_of(0, state=RankState.RUNNING))
    reports = wait_for_ranks(watch_over(directory, 1), stop_requested=lambda: True, stop_grace_s=0.2, interval_s=0.05)
    assert fates(reports) == [RankFate.WORKING]


def test_a_report_says_how_long_a_beat_has_not_changed(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    write_rank_status(directory, status_of(0, state=RankState.RUNNING, beat=1))
    assert watch.look()[0].silent_s == 0.0
    clock.now_s = 7.0
    assert watch.look()[0].silent_s == 7.0
    write_rank_status(directory, status_of(0, state=RankState.RUNNING, beat=2))
    assert watch.look()[0].silent_s == 0.0


def test_a_rank_that_is_silent_too_long_is_not_waited_for_where_that_is_asked(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    write_rank_status(directory, status_of(0, state=RankState.RUNNING))

    def a_second_passes(_) -> None:
        clock.now_s += 1.0

    reports = wait_for_ranks(watch, on_look=a_second_passes, stalled_after_s=30.0, interval_s=0.001)
    assert fates(reports) == [RankFate.WORKING]
    assert reports[0].alive
    assert reports[0].silent_s == 30.0


def test_a_rank_that_has_finished_is_there_until_its_process_ends(directory):
    write_rank_status(directory, status_of(0, state=RankState.RUNNING, start_ticks=1))
    write_rank_status(directory, status_of(1, state=RankState.FINISHED, exited=True))
    write_rank_status(directory, status_of(2, state=RankState.FINISHED))
    write_rank_status(directory, status_of(3, state=RankState.RUNNING))
    assert [report.rank for report in watch_over(directory, 4).look() if report.alive] == [2, 3]


def test_a_machine_that_gets_another_name_still_knows_its_own_processes(directory, monkeypatch):
    write_rank_status(directory, status_of(0))
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    watch.look()
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    clock.now_s = 1000.0
    assert fates(watch.look()) == [RankFate.WORKING]


def test_machine_identity_does_not_change():
    assert machine_identity() == machine_identity() != ""
