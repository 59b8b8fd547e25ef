"""A pipe in the place of a file that a run has written: it is named, and nobody waits for what never comes."""

import os

import pytest

from isaaclab_arena import ConfigError, StorageError
from isaaclab_arena.storage.ledger import read_commits, read_run_plan
from isaaclab_arena.storage.reports import read_job_reports
from tests.results.evidence import commit_lines, report, write_lines, write_report


@pytest.fixture
def directory(tmp_path):
    write_lines(tmp_path, commit_lines("s"))
    write_report(tmp_path, report())
    return tmp_path


def test_the_lines_of_other_files_count(directory):
    os.mkfifo(directory / "lift" / "episode_results_rank1.jsonl")
    log = read_commits(directory / "lift", "lift")
    assert [each.episode_index for each in log.lines] == [0]
    [problem] = log.problems
    assert problem.endswith("episode_results_rank1.jsonl: is a pipe, not a file; save what comes through it as a file")


def test_what_must_be_read_is_refused(directory):
    os.mkfifo(directory / "lift" / "episode_results_rank1.jsonl")
    with pytest.raises(StorageError, match="is a pipe"):
        read_commits(directory / "lift", "lift", skip_unreadable=False)


def test_the_reports_of_other_ranks_count(directory):
    os.mkfifo(directory / "lift" / "job_report_rank1.json")
    reports, [(_, problem)] = read_job_reports(directory / "lift", "lift")
    assert [each.rank for each in reports] == [0]
    assert "is a pipe" in problem


def test_a_plan_that_is_a_pipe_is_no_plan(directory):
    os.mkfifo(directory / "run.json")
    with pytest.raises(ConfigError, match=r"holds no run\.json"):
        read_run_plan(directory)
