"""Comparisons of episodes that repeat conditions: no surer than the conditions allow, and every figure says so."""

import json

import pytest

from isaaclab_arena.analysis.arms import match
from isaaclab_arena.analysis.comparison import (
    Question,
    Verdict,
    choose_best,
    compare_pairs,
    compare_with_job,
    not_chosen_by,
)
from isaaclab_arena.analysis.comparison_files import document, leaderboard, sentences, write_comparison
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.storage.disk import json_text
from tests.analysis.recorded_runs import arm_of, run_of


def test_two_starts_that_are_played_twenty_times_are_two_pairs(tmp_path):
    new, old = (arm_of(tmp_path / name, letter * 40, starts=2) for name, letter in (("new", "s"), ("old", "f")))
    found = compare_pairs(new, old, match(new, old), Question())
    assert (found.counts.total, found.distinct, found.verdict) == (40, 2, Verdict.UNDECIDED)
    assert (found.mid_p, found.exact_p) == pytest.approx((0.25, 0.5))
    two = arm_of(tmp_path / "two", "ss"), arm_of(tmp_path / "of", "ff")
    expected = compare_pairs(*two, match(*two), Question())
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.interval.low, expected.interval.high))
    assert found.intervals[0].low == pytest.approx(expected.intervals[0].low)
    assert found.detectable == expected.detectable
    assert found.length is not None
    assert expected.length is not None
    assert found.length.p_value == expected.length.p_value


def test_a_comparison_says_how_many_different_conditions_its_pairs_have(tmp_path):
    run = run_of(tmp_path / "run", {"old": "sf" * 4, "new": "s" * 8, "other": "f" * 8}, starts=4)
    report = compare_with_job(run, "old", Question())
    told = list(sentences(report))
    assert "new / old: 8 pairs have 4 different conditions and count as a sample of these" in told
    # The baseline's episodes are in the pairs of both candidates.
    assert "together: 16 pairs have 4 different conditions and count as a sample of these" in told
    said = json.loads(json_text(document(report)))
    assert [task["distinct_conditions"] for task in said["tasks"]] == [4, 4]
    assert said["together"]["distinct_conditions"] == 4
    write_comparison(tmp_path, report)
    header, *lines = (tmp_path / "comparison.csv").read_text().splitlines()
    assert header.endswith(",distinct_conditions")
    assert all(line.endswith(",4") for line in lines)
    for name, between in (("comparison.md", " | "), ("comparison.tex", " & ")):
        assert f"{between}8 (4 distinct){between}" in (tmp_path / name).read_text()
        assert f"{between}16 (4 distinct){between}" in (tmp_path / name).read_text()


def test_a_comparison_without_repeats_says_nothing_of_them(tmp_path):
    report = compare_with_job(run_of(tmp_path / "run", {"old": "sf" * 4, "new": "s" * 8}), "old", Question())
    write_comparison(tmp_path, report)
    assert "distinct" not in (tmp_path / "comparison.csv").read_text() + (tmp_path / "comparison.json").read_text()
    assert not any("different conditions" in line for line in sentences(report))


def test_places_of_a_leaderboard_stand_on_different_conditions(tmp_path):
    found = leaderboard([run_of(tmp_path / "run", {"good": "s" * 40, "bad": "f" * 40}, starts=2)], Question())
    two = wilson_interval(2, 2)
    assert two is not None
    assert [place.distinct for place in found.places] == [2, 2]
    assert found.places[0].interval.low == found.places[0].mean_interval.low == pytest.approx(two.low)
    # Forty pairs would tell them apart, two do not.
    assert [place.like for place in found.places] == [("bad",), ("good",)]


def test_the_best_is_not_scored_by_conditions_that_it_was_chosen_by(tmp_path):
    run = run_of(tmp_path / "turns", {"a": "sf" * 4, "b": "fs" * 4}, starts=2)
    choice = choose_best({name: [arm] for name, arm in run.arms.items()})
    assert choice is not None
    assert (choice.name, choice.rate_when_chosen, choice.rate, choice.episodes) == ("a", 1.0, 0.0, 4)
    assert "over the 4 of odd index (1 different condition), which nothing was chosen by" in choice.sentence
    assert len(not_chosen_by(run.arms["a"]).episodes) == 4
    same = run_of(tmp_path / "same", {"a": "ssss", "b": "ffff"}, starts=1)
    assert choose_best({name: [arm] for name, arm in same.arms.items()}) is None
