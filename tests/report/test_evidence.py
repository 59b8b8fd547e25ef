import dataclasses
import math

import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.config.schema import Question
from isaaclab_arena.report.writing import EvidenceCurve, evidence_curve
from isaaclab_arena.results.stopping import Answering, PairCounts, log_e_value_of_difference, log_e_value_of_equality
from tests.analysis.recorded_runs import write_run

QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=100)


def curve_of(
    directory, new: str, old: str, question: Question | None = None, *, num_questions: int = 1
) -> EvidenceCurve:
    arms = read_run(write_run(directory, {"new": new, "old": old})).arms
    answer = None if question is None else Answering(question, num_questions=num_questions).answer
    return evidence_curve(arms["new"], arms["old"], answer, num_questions=num_questions)


def pairs(wins: int, losses: int, alike: int = 0) -> PairCounts:
    return PairCounts(both=alike, only_first=wins, only_second=losses, neither=0)


def test_evidence_ends_at_the_e_value_of_all_episodes(tmp_path):
    curve = curve_of(tmp_path / "run", "s" * 14 + "sfsf", "f" * 14 + "sffs")
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1][0] == 18
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(pairs(15, 1)) / math.log(10))
    assert curve.line.startswith("0.00,")


def test_the_questions_of_a_run_share_the_level_that_decides(tmp_path):
    alone = curve_of(tmp_path / "1", "ss", "ff")
    assert (alone.needed, alone.bar) == ("20", "alpha 0.05, if nothing else is asked")
    two = curve_of(tmp_path / "2", "ss", "ff", QUESTION, num_questions=2)
    assert (two.needed, two.bar) == ("40", "alpha 0.05, shared by 2 questions")
    strict = curve_of(tmp_path / "3", "ss", "ff", dataclasses.replace(QUESTION, alpha=0.01))
    assert (strict.needed, strict.bar) == ("100", "alpha 0.01, shared by one question")


@pytest.mark.parametrize("jobs", [("new", "old"), ("old", "new")])
def test_with_a_margin_the_evidence_is_that_of_the_question_whichever_job_is_shown_first(tmp_path, jobs):
    asked = dataclasses.replace(QUESTION, jobs=jobs, margin=0.05)
    curve = curve_of(tmp_path / "run", "ssss", "sffs", asked)
    expected = log_e_value_of_difference(pairs(2, 0, 2) if jobs[0] == "new" else pairs(0, 2, 2), -0.05)
    assert curve.points[-1][1] == pytest.approx(expected / math.log(10))
    assert curve.against == f"{jobs[0]} is 5 points worse than {jobs[1]}"


def test_what_decides_lies_in_the_picture_even_where_little_is_known(tmp_path):
    curve = curve_of(tmp_path / "run", "s", "f", QUESTION, num_questions=1_000)
    at_zero = float(curve.line.split()[0].partition(",")[2])
    assert 0 < curve.limit < at_zero < 100


def test_evidence_beyond_what_a_number_holds_is_a_power_of_ten(tmp_path):
    assert curve_of(tmp_path / "run", "s" * 2_000, "f" * 2_000).e_value == "10^600"
    assert curve_of(tmp_path / "other", "sf", "sf").e_value == "1"


def test_there_is_one_bet_for_each_start(tmp_path):
    run = read_run(write_run(tmp_path / "run", {"new": "s" * 40, "old": "f" * 40}, starts=13))
    curve = evidence_curve(run.arms["new"], run.arms["old"], None, num_questions=1)
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(pairs(13, 0)) / math.log(10))
