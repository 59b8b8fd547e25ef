import dataclasses

import pytest

from isaaclab_arena.analysis.decision_replay import DecisionReplay, replay_decision
from isaaclab_arena.analysis.picture import (
    Bar,
    Dot,
    Line,
    Words,
    decision_in_words,
    decision_picture,
    histogram,
    question_in_words,
)
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.stopping import Verdict, verdict_in_words
from tests.analysis.recorded_runs import arm_of

QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=1_000)
BAR = Question(name="bar", jobs=("new",), max_episodes=1_000, at_least=0.8)


def replayed(tmp_path, first: str, second: str, question: Question = QUESTION) -> DecisionReplay:
    return replay_decision(question, [arm_of(tmp_path / "a", first), arm_of(tmp_path / "b", second)], num_orders=50)


def words(replay: DecisionReplay) -> list[str]:
    return [mark.text for mark in decision_picture(replay).marks if isinstance(mark, Words)]


def test_questions_and_verdicts_are_sentences():
    assert question_in_words(QUESTION) == "is new better or worse than old?"
    assert question_in_words(dataclasses.replace(QUESTION, margin=0.05)) == "is new at most 5 points worse than old?"
    assert question_in_words(BAR) == "does new succeed in at least 80 %?"
    assert verdict_in_words(QUESTION, Verdict.WORSE) == "new is worse than old"
    margin = dataclasses.replace(QUESTION, margin=0.05)
    assert verdict_in_words(margin, Verdict.WORSE) == "new is more than 5 points worse than old"
    assert verdict_in_words(BAR, Verdict.MISSED) == "new succeeds in less than 80 %"


def test_the_decision_is_told_with_its_episode_and_its_evidence(tmp_path):
    decided = replayed(tmp_path / "1", "s" * 10, "f" * 10)
    assert decision_in_words(decided) == "new is better than old, decided after 7 of 10 episodes (e-value 26.8)"
    undecided = replayed(tmp_path / "2", "ss", "fs")
    assert decision_in_words(undecided) == "undecided after 2 episodes (e-value 1)"


def test_a_histogram_counts_every_order_that_decided_once(tmp_path):
    replay = replayed(tmp_path, "s" * 30 + "f" * 11, "f" * 20 + "s" * 21)
    bars = histogram(replay, 10)
    assert list(bars)[:2] == [(1, 5), (6, 10)]
    assert list(bars)[-1] == (41, 41)
    assert sum(bars.values()) == len(replay.reordered)
    assert bars[6, 10] == sum(6 <= each.episodes <= 10 for each in replay.reordered)


def test_the_picture_has_the_curve_to_the_decision_and_what_came_after_it(tmp_path):
    replay = replayed(tmp_path, "s" * 12, "f" * 12)
    marks = decision_picture(replay).marks
    after, curve = [mark for mark in marks if isinstance(mark, Line) and len(mark.points) > 2]
    (dot,) = [mark for mark in marks if isinstance(mark, Dot)]
    assert len(curve.points) == 8
    assert len(after.points) == 6
    assert dot.centre == curve.points[-1] == after.points[0]
    heights = [y for _, y in curve.points]
    assert heights[1] > heights[7], "evidence that grows goes up"
    assert "20 decides" in words(replay)
    assert any(isinstance(mark, Bar) for mark in marks)


@pytest.mark.parametrize("episodes", [7, 13, 15, 100])
def test_the_words_of_what_decides_leave_the_dot_of_the_decision_free(tmp_path, episodes):
    marks = decision_picture(replayed(tmp_path, "s" * episodes, "f" * episodes)).marks
    (dot,) = [mark for mark in marks if isinstance(mark, Dot)]
    (label,) = [mark for mark in marks if isinstance(mark, Words) and mark.text.endswith("decides")]
    width = 0.6 * len(label.text) * label.size
    left = label.at[0] - (width if label.anchor == "end" else 0.0)
    assert not left <= dot.centre[0] <= left + width


@pytest.mark.parametrize(("episodes", "last"), [(7, "7"), (60, "60"), (101, "100")])
def test_the_axis_has_round_numbers(tmp_path, episodes, last):
    shown = words(replayed(tmp_path, "s" * episodes, "s" * episodes))
    ticks = shown[shown.index("0") : shown.index("episodes of each job")]
    assert ticks[-1] == last
    assert len(ticks) <= 11


def test_everything_lies_in_the_picture_even_where_the_evidence_is_endless(tmp_path):
    replay = replayed(tmp_path, "s" * 900, "f" * 900)
    drawn = decision_picture(replay)
    points = [point for mark in drawn.marks if isinstance(mark, Line) for point in mark.points]
    assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points)
    assert "1e250" in words(replay)
    assert "1" in words(replay)


def test_a_long_name_is_cut(tmp_path):
    replay = replayed(tmp_path, "s", "f", dataclasses.replace(QUESTION, name="n" * 200))
    assert words(replay)[0].endswith("…")
    assert len(words(replay)[0]) == 80
