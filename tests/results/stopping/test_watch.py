import pytest

from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.commit_watch import AnswerWatch
from isaaclab_arena.results.stopping import Verdict
from tests.results.evidence import commit_lines, write_lines

ASKED = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=20)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def write(directory, new: str, old: str, *, rank: int = 0, first: int = 0) -> None:
    write_lines(directory, commit_lines(new, job="new", rank=rank, first=first))
    write_lines(directory, commit_lines(old, job="old", rank=rank, first=first))


def test_what_several_ranks_commit_is_put_together(tmp_path):
    watch = AnswerWatch(tmp_path, [ASKED])
    assert not watch.is_over("new")
    write(tmp_path, "sss", "fff", rank=1, first=4)
    assert watch.look(now=True)[0].episodes == 0
    write(tmp_path, "ssss", "ffff")
    (answer,) = watch.look(now=True)
    assert (answer.verdict, answer.episodes) == (Verdict.BETTER, 7)
    assert watch.is_over("new")
    assert watch.is_over("old")
    assert not watch.is_over("other")


def test_files_are_read_now_and_then_unless_asked_for_now(tmp_path):
    clock = Clock()
    watch = AnswerWatch(tmp_path, [ASKED], clock=clock)
    watch.look()
    write(tmp_path, "s" * 7, "f" * 7)
    assert not watch.is_over("new")
    clock.now_s = 1.0
    assert watch.is_over("new")


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    watch = AnswerWatch(tmp_path, [ASKED])
    write(tmp_path, "s" * 7, "f" * 6)
    path = write_lines(tmp_path, commit_lines("f", job="old", rank=1, first=6))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert not watch.is_over("new", now=True)
    path.write_bytes(whole)
    assert watch.is_over("new", now=True)


def test_an_error_that_runs_again_does_not_count_until_it_has(tmp_path):
    watch = AnswerWatch(tmp_path, [ASKED], runs_again=lambda line: line.success is None)
    write(tmp_path, "sesssssss", "fffffffff")
    assert watch.look(now=True)[0].episodes == 1
    write_lines(tmp_path, commit_lines("s", job="new", rank=1, first=1))
    assert watch.look(now=True)[0].episodes == 7


def test_a_later_attempt_takes_the_place_of_an_error_that_was_counted(tmp_path):
    watch = AnswerWatch(tmp_path, [ASKED])
    write(tmp_path, "sesssssss", "fffffffff")
    assert watch.look(now=True)[0].episodes == 8
    (later,) = commit_lines("s", job="new", rank=1, first=1)
    object.__setattr__(later, "attempt", 2)
    write_lines(tmp_path, [later])
    assert watch.look(now=True)[0].episodes == 7


def test_a_job_that_does_not_measure_success_is_told_before_its_next_episode(tmp_path):
    write(tmp_path, "uuu", "fff")
    watch = AnswerWatch(tmp_path, [ASKED])
    with pytest.raises(ConfigError, match="job 'new': does not say whether its episodes succeed"):
        watch.lets_stop("new")
    assert not watch.is_over("new")


def test_without_questions_nothing_is_over(tmp_path):
    assert not AnswerWatch(tmp_path, []).lets_stop("new")
