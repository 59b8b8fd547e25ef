import logging
import threading
import time
from contextlib import AbstractContextManager

import pytest

from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.tracking.watched_run import live_tracking
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.tracking.runs import NotingTracker


@pytest.fixture
def run(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=4))
    return tmp_path


def following(run, tracker, **settings) -> AbstractContextManager[None]:
    return live_tracking(run, read_run_plan(run), ["wandb"], opened=lambda name, shown: tracker, **settings)


def wait_until(happened) -> None:
    deadline_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_results_are_told_while_the_run_goes_on_and_the_last_ones_at_its_end(run):
    tracker = NotingTracker()
    with following(run, tracker, interval_s=0.01):
        write_lines(run, commit_lines("sf"))
        wait_until(lambda: tracker.jobs and tracker.jobs[-1].episodes == 2)
        write_lines(run, commit_lines("ss", first=2))
        write_report(run, report())
    assert tracker.jobs[-1].episodes == 4
    assert [row["status"] for row in tracker.tables[-1]] == ["completed"]
    assert tracker.is_closed


def test_a_tracker_that_cannot_be_opened_is_warned_of_once_and_the_run_goes_on(run, caplog):
    def refuse(name, shown):
        raise TimeoutError("nobody answers")

    write_lines(run, commit_lines("sf"))
    with (
        caplog.at_level(logging.WARNING, logger="isaaclab_arena"),
        live_tracking(run, read_run_plan(run), ["wandb"], interval_s=0.01, opened=refuse),
    ):
        wait_until(lambda: caplog.messages)
        write_lines(run, commit_lines("ss", first=2))
    assert caplog.messages == ["wandb gets no more results of this run, which goes on: nobody answers"]


def test_files_that_cannot_be_read_end_the_tracking_and_not_the_run(run, caplog):
    tracker = NotingTracker()
    with caplog.at_level(logging.WARNING, logger="isaaclab_arena"), following(run, tracker):
        (run / "run.json").unlink()
    [warning] = caplog.messages
    assert warning.startswith("tracking has stopped, and the run goes on: ")


def test_the_end_of_a_run_does_not_wait_for_ever(run, caplog):
    answer = threading.Event()

    class Silent(NotingTracker):
        def log_job(self, measures):
            answer.wait(60)

    write_lines(run, commit_lines("sf"))
    with (
        caplog.at_level(logging.WARNING, logger="isaaclab_arena"),
        following(run, Silent(), interval_s=0.01, longest_close_s=0.2),
    ):
        pass
    answer.set()
    assert caplog.messages[0] == "tracking has not ended after 0 s and is left behind"
