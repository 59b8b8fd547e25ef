"""Commit lines and reports of jobs."""

import dataclasses
import json
import math
import os
from collections.abc import Collection, Mapping
from itertools import permutations
from types import MappingProxyType

import pytest

from isaaclab_arena import ConfigError, StorageError
from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.interfaces.episode import EpisodeEvents, Outcome
from isaaclab_arena.storage.commits import CommitWriter, commit_line, read_commits
from isaaclab_arena.storage.ledger import (
    JobReport,
    ReportedStatus,
    StartUp,
    job_standing,
    read_job_reports,
    read_run_plan,
    write_job_report,
)
from tests.results.evidence import commit_lines, planned, write_lines, write_report
from tests.results.evidence import report as job_standing_report
from tests.storage.recordings import ended

CONTEXT = {"rank": 1, "episode_in_env": 0, "timestamp": "2026-01-01T00:00:00+00:00", "wall_s": 0.5, "checksum": 7}
ARENA_FIELDS = {"job_name", "env_id", "episode_in_env", "language_instruction", "seed", "success"} | {
    "episode_length",
    "timestamp",
    "variations",
}


def line(index: int, metrics: Mapping[str, float] = MappingProxyType({"distance_m": 0.25}), **changes):
    record = ended(
        index,
        env_id=2,
        length=10,
        conditions={"cube.position": (0.1, 0.2), "cube.colour": "red"},
        language_instruction="lift the \n cube",
        metrics=dict(metrics),
    )
    return dataclasses.replace(commit_line(record, **CONTEXT), **changes)


def write(directory, *lines):
    writer = CommitWriter(directory, 1)
    for each in lines:
        writer.write(each)
    writer.close()
    return writer.path


def test_a_line_comes_back_as_it_was_and_holds_arenas_fields(tmp_path):
    written = line(0, events=EpisodeEvents(progress=0.25, decisive="dropped", seen={"dropped": (31, 2)}))
    said = json.loads(write(tmp_path, written).read_text())
    assert said.keys() >= ARENA_FIELDS
    assert said["variations"] == {"cube.position": [0.1, 0.2], "cube.colour": "red"}
    (read,) = read_commits(tmp_path, "lift").lines
    assert dataclasses.replace(read, conditions=written.conditions) == written


def test_progress_has_arenas_shape_and_is_null_for_tasks_of_one_part(tmp_path):
    metrics = {"progress": 0.5, "progress.red_in_left_bin": 1.0, "progress.blue_in_right_bin": 0.0}
    write(tmp_path, line(0), line(1, metrics))
    one, two = read_commits(tmp_path, "lift").lines
    assert one.progress is None
    assert two.progress == {
        "overall_score": 0.5,
        "all_complete": False,
        "criteria": {
            "red_in_left_bin": {"score": 1.0, "is_complete": True},
            "blue_in_right_bin": {"score": 0.0, "is_complete": False},
        },
    }


def test_lines_are_sorted_by_episode(tmp_path):
    write(tmp_path, line(10), line(9), line(0))
    assert [each.episode_index for each in read_commits(tmp_path, "lift").lines] == [0, 9, 10]


def test_what_is_not_a_number_is_written_as_null(tmp_path):
    path = write(tmp_path, line(0, episode_return=math.nan, metrics={"distance_m": math.inf}))
    said = json.loads(path.read_text(), parse_constant=lambda name: f"bare {name}")
    assert said["episode_return"] is None
    assert said["metrics"] == {"distance_m": None}


def test_a_torn_last_line_is_ignored(tmp_path):
    path = write(tmp_path, line(0), line(1))
    content = path.read_bytes()
    for length in range(content.index(b"\n") + 1, len(content), 7):
        path.write_bytes(content[:length])
        log = read_commits(tmp_path, "lift")
        assert [each.episode_index for each in log.lines] == [0]
        assert log.problems == ()


def test_garbage_is_reported_with_its_line_and_the_rest_is_read(tmp_path):
    path = write(tmp_path, line(0))
    garbage = [b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"job_name": "lift"}']
    wrong = json.dumps({**json.loads(path.read_text()), "episode_index": True}).encode()
    path.write_bytes(b"\n".join([path.read_bytes().strip(), *garbage, wrong, b""]))
    log = read_commits(tmp_path, "lift")
    assert len(log.lines) == 1
    assert [problem.split(": ")[1].split(" is")[0] for problem in log.problems] == [f"line {n}" for n in range(2, 8)]


def test_of_two_lines_of_an_episode_the_first_counts_and_unequal_ones_are_named(tmp_path):
    write(tmp_path, line(0), line(1))
    write(tmp_path, line(0, wall_s=9.0, env_id=5, timestamp="later"), line(1, success=False, outcome=Outcome.FAILURE))
    log = read_commits(tmp_path, "lift")
    assert [each.success for each in log.lines] == [True, True]
    assert log.unequal_episodes == (1,)


ERROR = {"outcome": Outcome.ERROR, "success": None}
FAILURE = {"outcome": Outcome.FAILURE, "success": False}
ATTEMPTS = {
    "an error first": (
        (line(0, attempt=1, **ERROR), line(0, attempt=2), line(0, attempt=3, **FAILURE)),
        (2, "success", (0,)),
    ),
    "an error later": ((line(0, attempt=1, **FAILURE), line(0, attempt=2, **ERROR)), (1, "failure", ())),
}


@pytest.mark.parametrize(("attempts", "counts"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_the_earliest_attempt_that_is_no_error_counts_whatever_file_its_line_is_in(tmp_path, attempts, counts):
    for number, order in enumerate(permutations(attempts)):
        for each in order:
            write(tmp_path / str(number), each)
        log = read_commits(tmp_path / str(number), "lift")
        assert [(each.attempt, each.outcome, log.retried_episodes) for each in log.lines] == [counts]
        assert log.unequal_episodes == (0,)


@pytest.mark.parametrize(
    "changed",
    [
        {"checksum": 8},
        {"outcome": "timeout"},
        {"success": None},
        {"length": 11},
        {"episode_return": 1.6},
        {"termination": "time_limit"},
        {"episode_seed": 5},
    ],
)
def test_whatever_says_how_an_episode_went_makes_two_lines_unequal(tmp_path, changed):
    write(tmp_path, line(0))
    write(tmp_path, line(0, **changed))
    assert read_commits(tmp_path, "lift").unequal_episodes == (0,)


def test_each_process_writes_a_file_of_its_own(tmp_path):
    first, second = CommitWriter(tmp_path, 0), CommitWriter(tmp_path, 0)
    assert first.path.name == "episode_results_rank0.jsonl"
    assert second.path.name == "episode_results_rank0_life1.jsonl"
    first.close()
    second.close()


def test_lines_of_another_job_are_reported_and_do_not_count(tmp_path):
    write(tmp_path, line(0, job="other"))
    log = read_commits(tmp_path, "lift")
    assert log.lines == read_commits(tmp_path / "never", "lift").lines == ()
    assert "'other'" in log.problems[0]


def report(rank: int, **changes) -> JobReport:
    return job_standing_report(rank=rank, **changes)


def test_reports_come_back_by_rank_also_those_that_do_not_say_how_the_job_began(tmp_path):
    path = write_job_report(tmp_path, report(10))
    document = json.loads(path.read_text())
    del document["start_up"]
    path.write_text(json.dumps(document))
    began = report(2, start_up=StartUp(import_s=1.5, compile_s=14.0, first_step_s=0.5))
    write_job_report(tmp_path, began)
    assert read_job_reports(tmp_path, "lift") == ([began, report(10)], [])


def test_a_later_report_stands_beside_the_earlier_one(tmp_path):
    failed = report(0, status=ReportedStatus.FAILED, error="no")
    write_job_report(tmp_path, failed)
    later = write_job_report(tmp_path, report(0, attempt=2))
    assert later.name == "job_report_rank0_life1.json"
    assert read_job_reports(tmp_path, "lift")[0] == [failed, report(0, attempt=2)]


def test_a_report_that_is_damaged_or_of_another_job_or_run_is_told_and_does_not_count(tmp_path):
    ours, earlier = report(0, run="ours"), report(1)
    for each in (ours, earlier):
        write_job_report(tmp_path, each)
    others = [write_job_report(tmp_path, report(rank)) for rank in (2, 3, 4)]
    others[0].write_text("{")
    others[1].write_text(others[1].read_text().replace('"lift"', '"push"'))
    others[2].unlink()
    write_job_report(tmp_path, report(4, run="theirs"))
    reports, problems = read_job_reports(tmp_path, "lift", "ours")
    assert reports == [ours, earlier]
    assert [path for path, _ in problems] == others
    for (_, problem), word in zip(problems, ("JSON", "'push'", "another run"), strict=True):
        assert word in problem


def test_that_a_rank_has_begun_counts_until_it_says_how_it_ended(tmp_path):
    begun = [report(rank, status=ReportedStatus.BEGUN) for rank in (0, 1)]
    paths = [write_job_report(tmp_path, each) for each in begun]
    write_job_report(tmp_path, report(1, status=ReportedStatus.BEGUN, attempt=2))
    kept = paths[0].read_bytes()
    ended = report(0)
    assert write_job_report(tmp_path, ended).name == "job_report_rank0.json"
    assert not paths[0].exists()
    assert read_job_reports(tmp_path, "lift")[0] == [ended, begun[1], report(1, status=ReportedStatus.BEGUN, attempt=2)]
    # As a crash between the two leaves it.
    paths[0].write_bytes(kept)
    assert read_job_reports(tmp_path, "lift")[0][:2] == [ended, begun[1]]


# Where a job stands, from its finished episodes and from what ranks have said of it.


ALL = range(10)
FAILED, STOPPED, BEGUN = (
    job_standing_report(status=status)
    for status in (ReportedStatus.FAILED, ReportedStatus.INTERRUPTED, ReportedStatus.BEGUN)
)
ENDED = job_standing_report()
NEVER_BUILT = job_standing_report(status=ReportedStatus.INTERRUPTED, reproducible=None)


def standing(
    finished: Collection[int], *reports: JobReport, needed=None, has_parts=False, **job
) -> tuple[str, int | None, tuple[int, ...]]:
    return job_standing(planned(**job), finished, reports, needed=needed, has_parts=has_parts)


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([ENDED], "completed"),
        ([BEGUN], "completed"),
        ([STOPPED], "completed"),
        ([STOPPED, job_standing_report(rank=1)], "completed"),
        ([NEVER_BUILT], "interrupted"),
        ([], "interrupted"),
        ([FAILED], "failed"),
        ([ENDED, job_standing_report(rank=1, status=ReportedStatus.FAILED)], "failed"),
        ([BEGUN, job_standing_report(rank=1, status=ReportedStatus.FAILED)], "failed"),
        ([FAILED, job_standing_report(attempt=2)], "completed"),
        ([FAILED, job_standing_report(attempt=2, status=ReportedStatus.BEGUN)], "completed"),
    ],
)
def test_a_job_with_all_its_episodes_is_complete_once_a_rank_has_said_what_they_promise(reports, status):
    assert standing(ALL, *reports)[0] == status


SECOND = job_standing_report(rank=1)
SHORT = job_standing_report(status=ReportedStatus.BEGUN, num_episodes=3)
UNKNOWN, STEPS = {"num_episodes": None}, {"num_episodes": None, "num_steps": 100}
STANDINGS = [
    # A job that lacks episodes is interrupted whatever ranks have said.
    *(((0, 2, *range(4, 10)), reports, {}, "interrupted", (1, 3)) for reports in ([ENDED], [BEGUN], [STOPPED], [])),
    # Without a trace a job is missing or was not to run.
    ((), [], {}, "missing", tuple(ALL)),
    ((), [], {"status": JobStatus.COMPLETED}, "skipped", ()),
    # As long as episodes have files of their own, only a report completes the job.
    (ALL, [BEGUN], {"has_parts": True}, "interrupted", ()),
    (ALL, [ENDED], {"has_parts": True}, "completed", ()),
    # A decision completes a job as its last episode does.
    (range(7), [BEGUN], {"needed": 6}, "completed", ()),
    (range(7), [], {"needed": 6}, "interrupted", ()),
    (range(5), [BEGUN], {"needed": 6}, "interrupted", (5,)),
    # The length may be known from what a rank has said.
    (range(3), [SHORT], UNKNOWN, "completed", ()),
    (range(2), [SHORT], UNKNOWN, "interrupted", (2,)),
    # A job that steps end is complete only where every rank that ended says so.
    (range(3), [ENDED], STEPS, "completed", ()),
    (range(3), [BEGUN], STEPS, "interrupted", ()),
    (range(3), [STOPPED, SECOND], STEPS, "interrupted", ()),
    # Of a rank that died another one has taken over all of it.
    (range(3), [BEGUN, SECOND], STEPS, "completed", ()),
]


@pytest.mark.parametrize(("finished", "reports", "job", "status", "missing"), STANDINGS)
def test_a_job_stands_where_its_episodes_and_its_ranks_say(finished, reports, job, status, missing):
    found, _, lacking = standing(finished, *reports, **job)
    assert (found, lacking) == (status, missing)


# A pipe in the place of a file that a run has written: it is named, and not waited for.


@pytest.fixture
def directory(tmp_path):
    write_lines(tmp_path, commit_lines("s"))
    write_report(tmp_path, job_standing_report())
    return tmp_path


def test_of_lines_and_reports_those_in_other_files_count_unless_all_must_be_read(directory):
    os.mkfifo(directory / "lift" / "episode_results_rank1.jsonl")
    os.mkfifo(directory / "lift" / "job_report_rank1.json")
    log = read_commits(directory / "lift", "lift")
    reports, told = read_job_reports(directory / "lift", "lift")
    assert [each.episode_index for each in log.lines] == [each.rank for each in reports] == [0]
    for [problem] in (log.problems, [each for _, each in told]):
        assert "is a pipe" in problem
    with pytest.raises(StorageError, match="is a pipe"):
        read_commits(directory / "lift", "lift", skip_unreadable=False)


def test_a_plan_that_is_a_pipe_is_no_plan(directory):
    os.mkfifo(directory / "run.json")
    with pytest.raises(ConfigError, match=r"run\.json"):
        read_run_plan(directory)
