"""Heartbeats of ranks, and who watches them."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from isaaclab_arena.distributed.context import process_start_ticks
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankState,
    RankStatus,
    RankWatch,
    StatusPublisher,
    read_rank_status,
    status_path,
    wait_for_ranks,
    write_rank_status,
)
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import LongWork
from tests.end_to_end.launching import wait_until
from tests.fakes import Clock


def status_of(rank: int = 1, **changes) -> RankStatus:
    return RankStatus(rank=rank, run_id="run", **changes)


def steps(num_running: int) -> tuple[Any, Any]:
    """Transition that an observer gets in a step of so many env slots."""
    return None, SimpleNamespace(num_running=num_running)


def ended(success: bool | None) -> tuple[Any, Any]:
    """Record that an observer gets at an episode's end: an error if success was not measured."""
    outcome = {True: Outcome.SUCCESS, False: Outcome.FAILURE, None: Outcome.ERROR}[success]
    return None, SimpleNamespace(success=success, outcome=outcome)


def said(directory) -> RankStatus:
    """Return the status of rank 1, which has to be there."""
    status = read_rank_status(directory, 1)
    assert status is not None
    return status


def test_what_is_written_is_read_again_by_those_of_the_same_start(directory):
    status = status_of(jobs_total=3, episodes_total=30)
    write_rank_status(directory, status)
    assert read_rank_status(directory, 1, run_id="run") == read_rank_status(directory, 1) == status
    assert read_rank_status(directory, 1, run_id="another") is read_rank_status(directory, 0) is None
    assert [path.name for path in (directory / "logs").iterdir()] == ["rank1.status.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"state": "running"}', '{"state": "asleep"}'])
def test_a_status_that_cannot_be_read_is_no_status(tmp_path, text):
    (tmp_path / "logs").mkdir()
    status_path(tmp_path, 1).write_text(text)
    assert read_rank_status(tmp_path, 1) is None


@pytest.mark.parametrize("name", ["rank", "run_id", "host", "machine", "pid", "start_ticks", "state"])
def test_a_status_that_does_not_say_its_process_is_not_filled_in_from_the_reader(tmp_path, name):
    (tmp_path / "logs").mkdir()
    write_rank_status(tmp_path, status_of())
    path = status_path(tmp_path, 1)
    written = json.loads(path.read_text())
    del written[name]
    path.write_text(json.dumps(written))
    assert read_rank_status(tmp_path, 1) is None


def test_the_publisher_writes_what_was_counted(tmp_path):
    with StatusPublisher(tmp_path, status_of(jobs_total=2, episodes_total=7), interval_s=0.02) as publisher:
        publisher.start_job("lift", num_episodes=4)
        for _ in range(10):
            publisher.on_step(*steps(3))
        for success in (True, False, None):
            publisher.on_episode_end(*ended(success))
        before = said(tmp_path)
        wait_until(lambda: said(tmp_path).beat > before.beat)
        beaten = said(tmp_path)
        assert (beaten.current_job, beaten.state) == ("lift", RankState.RUNNING)
        publisher.leave_job()
        publisher.finish_job(failed=True)
        publisher.publish(state=RankState.FINISHED)
        final = said(tmp_path)
        assert (final.state, final.exited) == (RankState.FINISHED, False)
    last = said(tmp_path)
    assert (last.env_steps, last.episodes_done, last.successes, last.scored, last.errors) == (30, 3, 1, 2, 1)
    assert (last.jobs_done, last.jobs_failed, last.current_job) == (1, 1, None)
    assert last.episodes_total == 6, "the episode that the failed job did not run is no longer expected"
    assert last.exited


def test_a_job_is_counted_when_its_report_is_written_though_the_next_one_has_begun(tmp_path):
    with StatusPublisher(tmp_path, status_of(jobs_total=2, episodes_total=7)) as publisher:
        publisher.start_job("lift", num_episodes=4)
        publisher.leave_job()
        publisher.start_job("drawer", num_episodes=3)
        publisher.set_long_work(LongWork("consolidating", 1, 4))
        publisher.finish_job()
        begun = said(tmp_path)
        assert (begun.current_job, begun.jobs_done, begun.episodes_total) == ("drawer", 1, 3)
        assert (begun.long_work, begun.long_work_done) == ("consolidating", 1)
        publisher.set_long_work(None)
    assert said(tmp_path).long_work is None


def test_speed_is_measured_between_beats(tmp_path):
    with StatusPublisher(tmp_path, status_of(), interval_s=0.02) as publisher:
        publisher.on_step(*steps(100))
        wait_until(lambda: publisher.status.steps_per_s > 0)
    assert publisher.status.steps_per_s <= 100 / 0.02


def test_a_publisher_left_by_an_exception_says_that_the_rank_failed(tmp_path):
    with pytest.raises(RuntimeError, match="out of memory"), StatusPublisher(tmp_path, status_of()):
        raise RuntimeError("out of memory")
    assert json.loads(status_path(tmp_path, 1).read_text())["state"] == "failed"


def test_a_status_that_cannot_be_written_does_not_stop_the_rank(tmp_path, caplog):
    publisher = StatusPublisher(tmp_path, status_of(), interval_s=0.01)
    with publisher:
        status_path(tmp_path, 1).rename(tmp_path / "gone")
        status_path(tmp_path, 1).mkdir()
        wait_until(lambda: bool(caplog.records))
        publisher.on_step(*steps(1))
        status_path(tmp_path, 1).rmdir()
        wait_until(lambda: (status := read_rank_status(tmp_path, 1)) is not None and status.env_steps == 1)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["cannot write this rank's status"]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def watch_over(directory, world_size: int, clock=time.monotonic) -> RankWatch:
    return RankWatch(directory, world_size=world_size, run_id="run", clock=clock)


def fates(reports) -> list[RankFate]:
    return [report.fate for report in reports]


def test_each_state_of_a_rank_and_of_its_process_is_a_fate(directory, monkeypatch):
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    running, finished = {"state": RankState.RUNNING}, {"state": RankState.FINISHED}
    said: list[tuple[dict[str, Any], RankFate, bool]] = [
        ({"state": RankState.STARTING}, RankFate.WORKING, True),
        (running, RankFate.WORKING, True),
        (finished, RankFate.FINISHED, True),
        ({"state": RankState.INTERRUPTED}, RankFate.INTERRUPTED, True),
        ({"state": RankState.FAILED}, RankFate.FAILED, True),
        # Its process has ended, or another one has its number.
        ({**finished, "exited": True}, RankFate.FINISHED, False),
        ({**running, "exited": True}, RankFate.DEAD, False),
        ({**running, "start_ticks": ticks - 1}, RankFate.DEAD, False),
    ]
    for rank, (changes, _, _) in enumerate(said):
        write_rank_status(directory, status_of(rank, **changes))
    clock = Clock()
    watch = watch_over(directory, len(said), clock)
    expected = [(fate, alive) for _, fate, alive in said]
    assert [(report.fate, report.alive) for report in watch.look()] == expected
    # A machine that gets another name still knows its own processes.
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    clock.now_s = 1000.0
    assert [(report.fate, report.alive) for report in watch.look()] == expected


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


def test_ranks_are_not_taken_for_silent_while_the_machine_slept(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    write_rank_status(directory, status_of(0))
    silent_s = []
    for pause_s in (1.0, 5.0, 300.0, 1.0, 30.0):
        silent_s.append(watch.look()[0].silent_s)
        clock.now_s += pause_s
    assert silent_s == [0.0, 1.0, 6.0, 0.0, 1.0]


def test_a_look_that_takes_long_itself_is_no_pause(directory):
    watch = watch_over(directory, 3, itertools.count(step=3.0).__next__)
    for rank in range(3):
        write_rank_status(directory, status_of(rank))
    assert [watch.look()[0].silent_s for _ in range(3)] == [0.0, 15.0, 30.0]


def test_a_rank_of_another_machine_lives_while_its_beat_goes_on(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    elsewhere = status_of(0, state=RankState.RUNNING, machine="another machine", pid=1, updated_at="1970-01-01")
    for beat in range(5):
        write_rank_status(directory, dataclasses.replace(elsewhere, beat=beat))
        (report,) = watch.look()
        assert (report.fate, report.silent_s) == (RankFate.WORKING, 0.0)
        clock.now_s += 59.0
    assert fates(watch.look()) == [RankFate.WORKING]
    clock.now_s += 2.0
    assert fates(watch.look()) == [RankFate.DEAD]


def test_a_killed_process_is_seen_as_dead_at_once_though_it_was_not_collected(directory):
    write_rank_status(directory, status_of(0, state=RankState.FINISHED))
    with subprocess.Popen(["sleep", "60"]) as process:
        ticks = process_start_ticks(process.pid)
        assert ticks is not None
        write_rank_status(directory, status_of(1, state=RankState.RUNNING, pid=process.pid, start_ticks=ticks))
        watch = watch_over(directory, 2)
        assert fates(watch.look()) == [RankFate.FINISHED, RankFate.WORKING]
        process.send_signal(signal.SIGSTOP)
        assert fates(watch.look()) == [RankFate.FINISHED, RankFate.WORKING], "a stopped process may go on"
        process.kill()
        assert fates(wait_for_ranks(watch.look, interval_s=0.01)) == [RankFate.FINISHED, RankFate.DEAD]


def test_waiting_goes_on_until_the_slowest_rank_has_finished(directory):
    write_rank_status(directory, status_of(0, state=RankState.FINISHED))
    watch, looks = watch_over(directory, 2), []
    with StatusPublisher(directory, status_of(1)) as publisher:

        def look():
            reports = watch.look()
            looks.append(fates(reports))
            if len(looks) == 3:
                publisher.publish(state=RankState.FINISHED)
            return reports

        reports = wait_for_ranks(look, interval_s=0.001)
    assert fates(reports) == [RankFate.FINISHED, RankFate.FINISHED]
    assert looks[:3] == [[RankFate.FINISHED, RankFate.WORKING]] * 3


def test_waiting_ends_after_a_request_to_stop(directory):
    write_rank_status(directory, status_of(0, state=RankState.RUNNING))
    look = watch_over(directory, 1).look
    reports = wait_for_ranks(look, stop_requested=lambda: True, stop_grace_s=0.01, interval_s=0.001)
    assert fates(reports) == [RankFate.WORKING]


def test_a_rank_that_is_silent_too_long_is_not_waited_for_where_that_is_asked(directory):
    clock = Clock()
    watch = watch_over(directory, 1, clock)
    write_rank_status(directory, status_of(0, state=RankState.RUNNING))

    def look_before_a_second_passes():
        reports = watch.look()
        clock.now_s += 1.0
        return reports

    reports = wait_for_ranks(look_before_a_second_passes, stalled_after_s=30.0, interval_s=0.001)
    assert fates(reports) == [RankFate.WORKING]
    assert reports[0].alive
    assert reports[0].silent_s == 30.0
