"""Jobs that fail by their errors, told from the episodes on disk alone."""

import dataclasses
import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from isaaclab_arena.interfaces.episode import POLICY_LOST
from isaaclab_arena.results.commit_watch import AnswerWatch
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.rows import JobEvidence, JobResultStatus
from isaaclab_arena.results.stopping import error_streak, nothing_but_errors
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import Attempt, CommitLine, write_attempt
from isaaclab_arena.storage.reports import ReportedStatus
from tests.growth import assert_grows_linearly
from tests.results.evidence import commit_lines, job_row, planned, report, write_lines, write_plan, write_report

SAME = "episodes in a row ended in the same error: the physics diverged"


def with_errors(lines: Sequence[CommitLine], *errors: str) -> list[CommitLine]:
    return [dataclasses.replace(line, error=error) for line, error in zip(lines, errors, strict=True)]


@pytest.mark.parametrize(
    ("outcomes", "most", "ends"),
    [
        ("seee", 3, True),
        ("eesees", 3, False),
        ("ee-e", 3, False),
        ("eeee", 5, False),
        ("eeee", 0, False),
        ("", 3, False),
    ],
)
def test_equal_errors_in_a_row_by_index_end_a_job(outcomes, most, ends):
    assert error_streak(commit_lines(outcomes), most) == (f"{most} {SAME}" if ends else None)


def test_numbers_make_no_other_error_and_words_do():
    lines = commit_lines("eee")
    alike = with_errors(lines, "took 3.1 s", "took 12.7 s", "took 0.5 s")
    assert error_streak(alike, 3) == "3 episodes in a row ended in the same error: took 0.5 s"
    assert error_streak(with_errors(lines, "no renderer", "no disk", "no renderer"), 2) is None


def test_env_slots_that_lost_their_policy_together_are_no_row():
    lost = [dataclasses.replace(line, termination=POLICY_LOST) for line in commit_lines("eee")]
    assert error_streak(lost, 2) is None


def test_a_job_of_nothing_but_errors_names_the_commonest():
    lines = with_errors(commit_lines("eeee"), "no disk", "no renderer 7", "no renderer 8", "no renderer 9")
    assert nothing_but_errors(lines) == "all 4 episodes ended in an error, 3 of them in this one: no renderer 7"
    assert nothing_but_errors(commit_lines("e")) == "its only episode ended in an error: the physics diverged"
    assert nothing_but_errors(commit_lines("eese")) is None
    assert nothing_but_errors([]) is None


def evidence(outcomes: str, *, most: int = 0, **job) -> JobEvidence:
    return JobEvidence(job=planned(**job), finished=commit_lines(outcomes), reports=[report()], max_equal_errors=most)


def test_a_job_of_nothing_but_errors_has_failed_once_all_of_them_are_there():
    every = "all 10 episodes ended in an error: the physics diverged"
    assert (evidence("e" * 10).standing.status, job_row(evidence("e" * 10))["error"]) == (JobResultStatus.FAILED, every)
    assert evidence("e" * 9).standing.status is JobResultStatus.INTERRUPTED
    assert evidence("e" * 9 + "f").standing.status is JobResultStatus.COMPLETED
    assert evidence("", num_steps=9, num_episodes=None).standing.status is JobResultStatus.COMPLETED


def test_what_a_rank_raised_is_named_before_the_errors_of_episodes():
    raised = report(status=ReportedStatus.FAILED, error="ValueError: no", traceback_file="lift/traceback.txt")
    failed = dataclasses.replace(evidence("e" * 10), reports=[raised])
    assert job_row(failed)["error"] == "ValueError: no"


def write_run(directory, parts: Sequence[tuple[int, int, str]], *, world_size: int) -> None:
    """Write a run of one job of 12 episodes: of each part its rank, its first episode, and how they ended."""
    write_plan(directory, planned(num_episodes=12), world_size=world_size)
    attempt = Attempt(
        number=1, run_id="run", started_at="", command_line=(), assignment="split", world_size=world_size,
        devices=("cpu",) * world_size, versions={}, git_revision=None, max_equal_errors=5,
        machine=Node(host="here", cpu="some", cores=2, platform="Linux"),
    )  # fmt: skip
    write_attempt(directory, attempt)
    for rank, first, outcomes in parts:
        write_lines(directory, commit_lines(outcomes, rank=rank, first=first))
        write_report(directory, report(rank=rank, num_episodes=12))


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 0, "sseeeeesssss")],
        [(0, 0, "sseee"), (1, 5, "eesssss")],
        [(0, 0, "sse"), (1, 3, "ee"), (2, 5, "ee"), (0, 7, "sssss")],
        [(1, 2, "eeeee")],
    ],
    ids=["one rank", "split", "pieces", "nothing else"],
)
def test_the_same_row_fails_a_job_whichever_ranks_played_it(tmp_path, parts):
    write_run(tmp_path, parts, world_size=3)
    merged = merge_results(tmp_path)
    (job,) = merged.jobs.to_dict("records")
    assert (job["status"], job["error"]) == ("failed", f"5 {SAME}")
    assert not merged.complete
    print_summary(merged, tmp_path, Console(file=(stream := io.StringIO()), width=200))
    assert f": 5 {SAME} (--resume --retry_errors plays them again)\n" in stream.getvalue()


class TestWatch:
    """What ranks know of it while they play."""

    def test_errors_of_several_ranks_are_put_together(self, tmp_path):
        watch = AnswerWatch(tmp_path, [], max_equal_errors=5)
        write_lines(tmp_path, commit_lines("sseee"))
        watch.suspect("lift")
        assert not watch.is_over("lift")
        write_lines(tmp_path, commit_lines("ee", rank=1, first=5))
        assert watch.is_over("lift", now=True)
        assert watch.fails("lift", 12)

    def test_a_job_without_errors_is_not_looked_at(self, tmp_path):
        watch = AnswerWatch(tmp_path, [], max_equal_errors=2)
        write_lines(tmp_path, commit_lines("eeee"))
        assert not watch.is_over("lift", now=True)
        assert not watch.fails("lift", 4)

    def test_what_an_earlier_attempt_left_ends_a_job_before_it_begins(self, tmp_path):
        write_lines(tmp_path, commit_lines("eeee"))
        assert AnswerWatch(tmp_path, [], max_equal_errors=4).lets_stop("lift")
        assert not AnswerWatch(tmp_path, [], max_equal_errors=4, runs_again=lambda _: True).lets_stop("lift")

    def test_errors_that_go_on_without_being_the_same_cost_each_episode_no_look_at_all_of_them(self, tmp_path):
        def played(number: int) -> None:
            directory = tmp_path / str(number)
            if not directory.exists():
                write_lines(directory, with_errors(commit_lines("e" * number), *["one", "other"] * (number // 2)))
            watch = AnswerWatch(directory, [], max_equal_errors=20, clock=lambda: 0.0)
            for _ in range(number):
                watch.suspect("lift")
                assert not watch.is_over("lift")

        assert_grows_linearly(played, size=200)

    def test_a_job_of_nothing_but_errors_fails_when_all_are_there(self, tmp_path):
        write_lines(tmp_path, commit_lines("eee"))
        watch = AnswerWatch(tmp_path, [], max_equal_errors=0)
        watch.suspect("lift")
        assert not watch.fails("lift", 4)
        assert watch.fails("lift", 3)
        assert watch.fails("lift", None)
