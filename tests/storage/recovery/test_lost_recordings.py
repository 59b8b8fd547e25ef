"""Recordings of errors that somebody deleted or damaged: an error is an outcome, and no loss makes it run again."""

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.observers import Outcome
from isaaclab_arena.results import merge_results
from isaaclab_arena.storage.ledger import write_run_plan
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, plan, recover


@pytest.fixture
def job(tmp_path) -> JobOnDisk:
    """Return a job that is complete, of whose four episodes the second ended in an error."""
    write_run_plan(tmp_path, plan())
    job = JobOnDisk(tmp_path)
    job.finish(0, 2, 3)
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    job.report(num_episodes=4)
    return job


@pytest.mark.parametrize("damage", [None, b"", b"no HDF5"], ids=["deleted", "empty", "garbage"])
def test_an_error_whose_recording_is_lost_stands_and_is_reported(tmp_path, job, damage):
    job.part(1).unlink()
    if damage is not None:
        job.part(1).write_bytes(damage)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 4),)
    assert not recovery.left()
    assert any("demo_1 ended in an error, and the recording is lost" in note for note in recovery.notes)
    assert job.committed()[1].outcome == "error"
    assert merge_results(tmp_path).jobs["retried"].tolist() == [0]


def test_verify_names_the_lost_recording_before_and_after_a_resume(tmp_path, job, capsys):
    job.part(1).unlink()
    for _ in range(2):
        assert main(["verify", str(tmp_path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        told = [line for line in lines if "recording of an error is lost" in line]
        assert len(told) == 1
        assert "demo_1" in told[0]
        recover(tmp_path)


def test_a_lost_recording_runs_again_where_errors_do(tmp_path, job):
    job.part(1).unlink()
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == ((0, 1), (2, 4))


def test_a_retry_that_had_begun_is_still_due_and_one_that_came_out_is_not(tmp_path, job):
    begun = recover(tmp_path, retry_errors=True)
    begin_attempt(tmp_path, 2, begun, retry_errors=True)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 1), (2, 4))
    job.finish(1, outcome=Outcome.ERROR, error="it fell again", attempt=2)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 4),)


def test_an_attempt_without_that_option_begins_no_retry(tmp_path, job):
    begun = recover(tmp_path, retry_errors=True)
    begin_attempt(tmp_path, 2, begun, retry_errors=False)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 4),)


def test_a_line_that_was_made_an_error_by_hand_is_withdrawn(tmp_path):
    job = JobOnDisk(tmp_path)
    job.write_part(job.line(1))
    job.commit(job.line(1, outcome=Outcome.ERROR, success=None, error="never happened"))
    assert recover(tmp_path).jobs[0].finished == ()
    assert job.committed() == {}
