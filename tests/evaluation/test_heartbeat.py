"""Heartbeats of ranks, and who watches them."""

import dataclasses
import io
import logging
import os
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from isaaclab_arena.distributed.context import process_start_ticks
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankReport,
    RankState,
    RankStatus,
    RankWatch,
    StatusPublisher,
    in_a_thread,
    keep_showing,
    progress_line,
    progress_table,
    read_rank_status,
    status_path,
    time_left_s,
    wait_for_ranks,
    write_rank_status,
)
from isaaclab_arena.interfaces.episode import Outcome
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


def report_of(rank: int, *, fate: RankFate = RankFate.WORKING, alive: bool = True, **changes) -> RankReport:
    status = dataclasses.replace(RankStatus(rank=rank, run_id="run"), **{"state": RankState.RUNNING, **changes})
    return RankReport(rank=rank, fate=fate, status=status, alive=alive)


def rendered(reports, elapsed_s: float = 60.0, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(progress_table(reports, elapsed_s=elapsed_s))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_every_rank_and_the_whole():
    reports = [
        report_of(0, jobs_done=1, jobs_total=3, episodes_done=50, episodes_total=100, current_job="lift[bold]_cube",
                  job_successes=25, job_scored=40, successes=50, scored=50, errors=2, steps_per_s=12_345.6),
        report_of(1, fate=RankFate.DEAD, alive=False, jobs_total=2, episodes_total=50, current_job="drawer",
                  steps_per_s=99.0),
        RankReport(rank=2, fate=RankFate.WORKING, status=None, alive=True),
    ]  # fmt: skip
    text = rendered(reports)
    for expected in ("1/3", "lift[bold]_cube", "50/100", "62%", "12,346", "dead in drawer", "has not started yet"):
        assert expected in text
    assert "33%, 1:00 elapsed, 2:00 left" in text
    assert "jobs 1/5, episodes 50, success of lift[bold]_cube 62%, 12,346 steps/s" in text


def test_a_run_whose_model_is_being_loaded_says_so_and_promises_no_time():
    """160 of 168 episodes took ten seconds, but the eight that are left need a model that takes longer to load."""
    loading = report_of(0, jobs_done=8, jobs_total=9, episodes_done=160, episodes_total=168, current_job="colour-gr00t",
                        preparing="loading the policy", job_episodes_total=8)  # fmt: skip
    assert time_left_s([loading], 10.0) is None
    line = progress_line([loading], elapsed_s=10.0)
    assert "left" not in line
    assert line.endswith("0:10 elapsed, colour-gr00t: loading the policy")
    assert "colour-gr00t: loading the policy" in rendered([loading])


def test_the_time_left_follows_the_pace_of_the_job_that_is_under_way():
    slow: dict[str, Any] = {"episodes_total": 168, "job_episodes_total": 8}
    assert time_left_s([report_of(0, current_job="slow", episodes_done=160, **slow)], 15.0) is None, (
        "its pace is not known yet"
    )
    under_way = report_of(0, current_job="slow", episodes_done=162, job_episodes_done=2, job_stepping_s=20.0, **slow)
    assert time_left_s([under_way], 35.0) == pytest.approx(60.0)
    behind = report_of(1, current_job="fast", episodes_done=10, episodes_total=100, job_episodes_total=20,
                       job_episodes_done=10, job_stepping_s=5.0)  # fmt: skip
    assert time_left_s([under_way, behind], 35.0) == pytest.approx(5.0 + 80 * 3.5)


WHOLE: dict[str, Any] = {"jobs_total": 1, "episodes_done": 12_000, "episodes_total": 12_000, "current_job": "lift"}
CONSOLIDATING: dict[str, Any] = {"long_work": "consolidating", "long_work_total": 100}
LOST = [
    report_of(0, fate=RankFate.FINISHED, jobs_done=2, jobs_total=2),
    report_of(1, fate=RankFate.DEAD, alive=False, jobs_total=2),
    report_of(2, fate=RankFate.FAILED, alive=False, jobs_total=1, jobs_done=1),
]
SOME_CONSOLIDATE = [
    report_of(0, long_work_done=10, **CONSOLIDATING),
    report_of(1, long_work_done=30, **CONSOLIDATING, steps_per_s=40.0),
    report_of(2, steps_per_s=7.0, current_job="drawer"),
    report_of(3, fate=RankFate.DEAD, alive=False, long_work_done=99, **CONSOLIDATING),
]


@pytest.mark.parametrize(
    ("reports", "elapsed_s", "line"),
    [
        # An idle run says nothing about the time left.
        ([report_of(0, jobs_total=2)], 5.0, "0%, jobs 0/2, episodes 0, 0 steps/s, 0:05 elapsed"),
        (LOST, 4000.0, "60%, jobs 3/5, episodes 0, 0 steps/s, 1:06:40 elapsed, lost ranks: 1, 2"),
        (
            [report_of(0, **WHOLE, long_work="consolidating", long_work_done=3_400, long_work_total=12_000)],
            60.0,
            "99%, jobs 0/1, episodes 12000, consolidating 3,400 of 12,000 episodes, 1:00 elapsed",
        ),
        (
            SOME_CONSOLIDATE,
            1.0,
            "0%, episodes 0, 7 steps/s, consolidating 40 of 200 episodes, 0:01 elapsed, lost ranks: 3",
        ),
    ],
)
def test_the_line_says_how_far_a_run_is_what_its_ranks_do_and_which_are_lost(reports, elapsed_s, line):
    assert progress_line(reports, elapsed_s=elapsed_s) == line


def test_on_a_terminal_log_lines_go_through_the_display_and_nothing_of_it_stays(tmp_path):
    publisher = StatusPublisher(tmp_path, RankStatus(rank=0, run_id="run", jobs_total=1))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    own_stream = io.StringIO()
    handler = logging.StreamHandler(own_stream)
    logger = logging.getLogger("isaaclab_arena")
    logger.addHandler(handler)
    try:
        show = partial(keep_showing, RankWatch(tmp_path, world_size=1, run_id="run").look, console=console)
        with publisher, in_a_thread(show, name="progress"):
            logger.warning("a job has failed")
            publisher.start_job("lift")
            publisher.leave_job()
            publisher.finish_job()
            publisher.publish(state=RankState.FINISHED)
        assert handler.stream is own_stream
    finally:
        logger.removeHandler(handler)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "a job has failed" in text
    assert "a job has failed" not in own_stream.getvalue()
    assert "finished" in text
    assert "100%" in text
    # Every line of the display is erased: the bar, the counts, the heading and one rank.
    assert text.rpartition("finished")[2].count("\x1b[2K") >= 4
