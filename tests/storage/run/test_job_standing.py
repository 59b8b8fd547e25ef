"""Where a job stands, from its finished episodes and from what ranks have said of it."""

from collections.abc import Collection

import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.storage.reports import JobReport, JobStanding, ReportedStatus, job_standing
from tests.results.evidence import planned, report

ALL = range(10)
FAILED, STOPPED, BEGUN = (
    report(status=status) for status in (ReportedStatus.FAILED, ReportedStatus.INTERRUPTED, ReportedStatus.BEGUN)
)
ENDED = report()
NEVER_BUILT = report(status=ReportedStatus.INTERRUPTED, reproducible=None)


def standing(finished: Collection[int], *reports: JobReport, needed=None, has_parts=False, **job) -> JobStanding:
    return job_standing(planned(**job), finished, reports, needed=needed, has_parts=has_parts)


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([ENDED], "completed"),
        ([BEGUN], "completed"),
        ([STOPPED], "completed"),
        ([STOPPED, report(rank=1)], "completed"),
        ([NEVER_BUILT], "interrupted"),
        ([], "interrupted"),
        ([FAILED], "failed"),
        ([ENDED, report(rank=1, status=ReportedStatus.FAILED)], "failed"),
        ([BEGUN, report(rank=1, status=ReportedStatus.FAILED)], "failed"),
        ([FAILED, report(attempt=2)], "completed"),
        ([FAILED, report(attempt=2, status=ReportedStatus.BEGUN)], "completed"),
    ],
)
def test_a_job_with_all_its_episodes_is_complete_once_a_rank_has_said_what_they_promise(reports, status):
    assert standing(ALL, *reports).status == status


@pytest.mark.parametrize("reports", [[ENDED], [BEGUN], [STOPPED], []])
def test_a_job_that_lacks_episodes_is_interrupted_whatever_ranks_have_said(reports):
    found = standing({0, 2, 4, 5, 6, 7, 8, 9}, *reports)
    assert (found.status, found.planned, found.missing) == ("interrupted", 10, (1, 3))


def test_without_a_trace_a_job_is_missing_or_was_not_to_run():
    assert standing(()).status == "missing"
    skipped = standing((), status=JobStatus.COMPLETED)
    assert (skipped.status, skipped.missing) == ("skipped", ())


def test_as_long_as_episodes_have_files_of_their_own_only_a_report_completes_the_job():
    assert standing(ALL, BEGUN, has_parts=True).status == "interrupted"
    assert standing(ALL, ENDED, has_parts=True).status == "completed"


@pytest.mark.parametrize(("reports", "status"), [([BEGUN], "completed"), ([], "interrupted")])
def test_a_decision_completes_a_job_as_its_last_episode_does(reports, status):
    found = standing(range(7), *reports, needed=6)
    assert (found.status, found.missing) == (status, ())
    assert standing(range(5), BEGUN, needed=6).missing == (5,)


def test_the_length_of_a_job_may_be_known_from_what_a_rank_has_said():
    said = report(status=ReportedStatus.BEGUN, num_episodes=3)
    assert standing(range(3), said, num_episodes=None).status == "completed"
    assert standing(range(2), said, num_episodes=None).missing == (2,)


def test_a_job_that_steps_end_is_complete_only_where_every_rank_that_ended_says_so():
    limited = {"num_episodes": None, "num_steps": 100}
    assert standing(range(3), ENDED, **limited).status == "completed"
    assert standing(range(3), BEGUN, **limited).status == "interrupted"
    assert standing(range(3), STOPPED, report(rank=1), **limited).status == "interrupted"
    # Of a rank that died another one has taken over all of it.
    assert standing(range(3), BEGUN, report(rank=1), **limited).status == "completed"
