"""Commit lines and reports of jobs."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from itertools import permutations
from types import MappingProxyType

import pytest

from isaaclab_arena import StorageError
from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.interfaces.episode import EpisodeEvents, Outcome
from isaaclab_arena.storage.commits import CommitWriter, commit_line, read_commits
from isaaclab_arena.storage.ledger import ReportedStatus, StartUp, job_standing, read_job_reports, write_job_report
from tests.results.evidence import commit_lines, planned, report, write_lines, write_report
from tests.storage.recordings import ended

CONTEXT = {"rank": 1, "episode_in_env": 0, "timestamp": "2026-01-01T00:00:00+00:00", "wall_s": 0.5, "checksum": 7}


def line(index: int, metrics: Mapping[str, float] = MappingProxyType({"distance_m": 0.25}), **changes):
    said = {"length": 10, "metrics": dict(metrics), "language_instruction": "lift the \n cube"}
    record = ended(index, env_id=2, conditions={"cube.position": (0.1, 0.2), "cube.colour": "red"}, **said)
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
    assert said.keys() >= {"job_name", "env_id", "episode_in_env", "language_instruction", "seed", "success"}
    assert said.keys() >= {"episode_length", "timestamp", "variations"}
    assert said["variations"] == {"cube.position": [0.1, 0.2], "cube.colour": "red"}
    (read,) = read_commits(tmp_path, "lift").lines
    assert dataclasses.replace(read, conditions=written.conditions) == written
    path = write(tmp_path / "other", line(0, episode_return=math.nan, metrics={"distance_m": math.inf}))
    said = json.loads(path.read_text(), parse_constant=lambda name: f"bare {name}")
    assert (said["episode_return"], said["metrics"]) == (None, {"distance_m": None})


def test_progress_has_arenas_shape_and_is_null_for_tasks_of_one_part(tmp_path):
    metrics = {"progress": 0.5, "progress.red_in_left_bin": 1.0, "progress.blue_in_right_bin": 0.0}
    write(tmp_path, line(10, metrics), line(9))
    one, two = read_commits(tmp_path, "lift").lines
    assert (one.episode_index, one.progress) == (9, None)
    parts = {"red_in_left_bin": (1.0, True), "blue_in_right_bin": (0.0, False)}
    criteria = {name: {"score": score, "is_complete": is_complete} for name, (score, is_complete) in parts.items()}
    assert two.progress == {"overall_score": 0.5, "all_complete": False, "criteria": criteria}


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


OTHER = {"checksum": 8, "outcome": "timeout", "success": None, "length": 11, "episode_return": 1.6} | {
    "termination": "time_limit",
    "episode_seed": 5,
}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_whatever_says_how_an_episode_went_makes_two_lines_unequal(tmp_path, name, value):
    for each in (line(0), line(0, **{name: value})):
        write(tmp_path, each)
    assert read_commits(tmp_path, "lift").unequal_episodes == (0,)


def test_lines_of_another_job_are_reported_and_do_not_count(tmp_path):
    write(tmp_path, line(0, job="other"))
    log = read_commits(tmp_path, "lift")
    assert log.lines == read_commits(tmp_path / "never", "lift").lines == ()
    assert "'other'" in log.problems[0]


def test_reports_come_back_by_rank_and_attempt_also_those_that_do_not_say_how_the_job_began(tmp_path):
    path = write_job_report(tmp_path, report(rank=10))
    document = json.loads(path.read_text())
    del document["start_up"]
    path.write_text(json.dumps(document))
    failed = report(status=ReportedStatus.FAILED, error="no")
    began = report(rank=2, start_up=StartUp(import_s=1.5, compile_s=14.0, first_step_s=0.5))
    for each in (failed, began):
        write_job_report(tmp_path, each)
    assert write_job_report(tmp_path, report(attempt=2)).name == "job_report_rank0_life1.json"
    assert read_job_reports(tmp_path, "lift") == ([failed, began, report(rank=10), report(attempt=2)], [])


def test_a_report_that_is_damaged_or_of_another_job_or_run_is_told_and_does_not_count(tmp_path):
    ours, earlier = report(run="ours"), report(rank=1)
    for each in (ours, earlier):
        write_job_report(tmp_path, each)
    others = [write_job_report(tmp_path, report(rank=rank)) for rank in (2, 3, 4)]
    others[0].write_text("{")
    others[1].write_text(others[1].read_text().replace('"lift"', '"push"'))
    others[2].unlink()
    write_job_report(tmp_path, report(rank=4, run="theirs"))
    reports, problems = read_job_reports(tmp_path, "lift", "ours")
    assert reports == [ours, earlier]
    assert [path for path, _ in problems] == others
    for (_, problem), word in zip(problems, ("JSON", "'push'", "another run"), strict=True):
        assert word in problem


def test_that_a_rank_has_begun_counts_until_it_says_how_it_ended(tmp_path):
    ranks, begun = ((0, 1), (1, 1), (1, 2)), {"status": ReportedStatus.BEGUN}
    begun = [report(rank=rank, attempt=attempt, **begun) for rank, attempt in ranks]
    paths = [write_job_report(tmp_path, each) for each in begun]
    kept = paths[0].read_bytes()
    assert write_job_report(tmp_path, report()).name == "job_report_rank0.json"
    assert not paths[0].exists()
    assert read_job_reports(tmp_path, "lift")[0] == [report(), *begun[1:]]
    # As a crash between the two leaves it.
    paths[0].write_bytes(kept)
    assert read_job_reports(tmp_path, "lift")[0] == [report(), *begun[1:]]


# Where a job stands, from its finished episodes and from what ranks have said of it.


ALL = range(10)
FAILED, STOPPED, BEGUN = (
    report(status=status) for status in (ReportedStatus.FAILED, ReportedStatus.INTERRUPTED, ReportedStatus.BEGUN)
)
ENDED = report()
NEVER_BUILT = report(status=ReportedStatus.INTERRUPTED, reproducible=None)


SECOND, BROKEN = report(rank=1), report(rank=1, status=ReportedStatus.FAILED)
SHORT = report(status=ReportedStatus.BEGUN, num_episodes=3)
UNKNOWN, STEPS = {"num_episodes": None}, {"num_episodes": None, "num_steps": 100}
STANDINGS = [
    # All episodes are there: the job is complete once a rank has said what they promise.
    *((ALL, reports, {}, "completed", ()) for reports in ([ENDED], [BEGUN], [STOPPED], [STOPPED, SECOND])),
    *((ALL, reports, {}, "interrupted", ()) for reports in ([NEVER_BUILT], [])),
    *((ALL, reports, {}, "failed", ()) for reports in ([FAILED], [ENDED, BROKEN], [BEGUN, BROKEN])),
    *((ALL, [FAILED, report(attempt=2, status=status)], {}, "completed", ()) for status in ("completed", "begun")),
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
    how = {"needed": None, "has_parts": False}
    how |= {key: value for key, value in job.items() if key in how}
    entry = planned(**{key: value for key, value in job.items() if key not in how})
    found, _, lacking = job_standing(entry, finished, reports, **how)
    assert (found, lacking) == (status, missing)


def test_a_pipe_in_the_place_of_lines_and_reports_is_named_and_those_in_other_files_count(tmp_path):
    write_lines(tmp_path, commit_lines("s"))
    write_report(tmp_path, report())
    os.mkfifo(tmp_path / "lift" / "episode_results_rank1.jsonl")
    os.mkfifo(tmp_path / "lift" / "job_report_rank1.json")
    log = read_commits(tmp_path / "lift", "lift")
    reports, told = read_job_reports(tmp_path / "lift", "lift")
    assert [each.episode_index for each in log.lines] == [each.rank for each in reports] == [0]
    for [problem] in (log.problems, [each for _, each in told]):
        assert "is a pipe" in problem
    with pytest.raises(StorageError, match="is a pipe"):
        read_commits(tmp_path / "lift", "lift", skip_unreadable=False)
