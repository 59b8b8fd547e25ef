import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from isaaclab_arena.evaluation.heartbeat import (
    RankState,
    RankStatus,
    StatusPublisher,
    read_rank_status,
    status_path,
    write_rank_status,
)
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import LongWork
from tests.end_to_end.launching import wait_until


def status_of(**changes) -> RankStatus:
    return RankStatus.of_this_process(rank=1, run_id="run", **changes)


def steps(num_running: int) -> tuple[Any, Any]:
    """Transition that an observer gets in a step of so many env slots."""
    return None, SimpleNamespace(num_running=num_running)


def ended(success: bool | None) -> tuple[Any, Any]:
    """Record that an observer gets at an episode's end: an error if success was not measured."""
    outcome = {True: Outcome.SUCCESS, False: Outcome.FAILURE, None: Outcome.ERROR}[success]
    return None, SimpleNamespace(success=success, outcome=outcome)


def test_what_is_written_is_read_again(tmp_path):
    (tmp_path / "logs").mkdir()
    status = status_of(jobs_total=3, episodes_total=30)
    write_rank_status(tmp_path, status)
    assert read_rank_status(tmp_path, 1, run_id="run") == status
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank1.status.json"]


def test_a_status_of_an_earlier_start_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "logs").mkdir()
    write_rank_status(tmp_path, status_of())
    assert read_rank_status(tmp_path, 1, run_id="another") is None
    assert read_rank_status(tmp_path, 1) is not None
    assert read_rank_status(tmp_path, 0) is None


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
        before = read_rank_status(tmp_path, 1)
        assert before is not None
        wait_until(lambda: (status := read_rank_status(tmp_path, 1)) is not None and status.beat > before.beat)
        beaten = read_rank_status(tmp_path, 1)
        assert beaten is not None
        assert beaten.current_job == "lift"
        assert beaten.state is RankState.RUNNING
        publisher.leave_job()
        publisher.finish_job(failed=True)
        publisher.set_state(RankState.FINISHED)
        final = read_rank_status(tmp_path, 1)
        assert final is not None
        assert final.state is RankState.FINISHED
        assert not final.exited
    last = read_rank_status(tmp_path, 1)
    assert last is not None
    assert (last.env_steps, last.episodes_done, last.successes, last.scored, last.errors) == (30, 3, 1, 2, 1)
    assert (last.jobs_done, last.jobs_failed, last.current_job) == (1, 1, None)
    assert last.episodes_total == 6, "the episode that the failed job did not run is no longer expected"
    assert last.exited


def test_a_job_is_counted_when_its_report_is_written_though_the_next_one_has_begun(tmp_path):
    with StatusPublisher(tmp_path, status_of(jobs_total=2, episodes_total=7)) as publisher:
        publisher.start_job("lift", num_episodes=4)
        publisher.leave_job()
        publisher.start_job("drawer", num_episodes=3)
        publisher.hear_of("lift", LongWork("consolidating", 1, 4))
        publisher.finish_job()
        beside = read_rank_status(tmp_path, 1)
        assert beside is not None
        assert (beside.current_job, beside.jobs_done, beside.episodes_total) == ("drawer", 1, 3)
        assert (beside.long_work_job, beside.long_work, beside.long_work_done) == ("lift", "consolidating", 1)
        publisher.hear(LongWork("pondering", 2, 3))
        publisher.finish_job()
        own = read_rank_status(tmp_path, 1)
        assert own is not None
        assert (own.long_work_job, own.long_work) == (None, "pondering")
        publisher.hear(None)
        publisher.hear_of("lift", None)
    last = read_rank_status(tmp_path, 1)
    assert last is not None
    assert (last.long_work_job, last.long_work) == (None, None)


def test_speed_is_measured_between_beats(tmp_path):
    with StatusPublisher(tmp_path, status_of(), interval_s=0.02) as publisher:
        for _ in range(20):
            publisher.on_step(*steps(100))
            time.sleep(0.01)
        steps_per_s = publisher.status.steps_per_s
    assert 0 < steps_per_s < 15_000, "at most 100 steps per 10 ms were counted"


def test_a_publisher_left_by_an_exception_says_that_the_rank_failed(tmp_path):
    with pytest.raises(RuntimeError, match="out of memory"), StatusPublisher(tmp_path, status_of()):
        raise RuntimeError("out of memory")
    assert json.loads(status_path(tmp_path, 1).read_text())["state"] == "failed"


def test_a_full_disk_does_not_stop_the_rank(tmp_path, caplog):
    publisher = StatusPublisher(tmp_path, status_of(), interval_s=0.01)
    with publisher:
        status_path(tmp_path, 1).unlink()
        status_path(tmp_path, 1).parent.rename(tmp_path / "gone")
        wait_until(lambda: bool(caplog.records))
        publisher.on_step(*steps(1))
        (tmp_path / "gone").rename(tmp_path / "logs")
        wait_until(lambda: (status := read_rank_status(tmp_path, 1)) is not None and status.env_steps == 1)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["cannot write this rank's status"]
