"""How many episodes a comparison needs, and what repeats of a run say."""

import itertools
import json

import numpy as np
import pytest
from scipy.stats import boschloo_exact

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
from isaaclab_arena.results.statistics import (
    PairChances,
    PairCounts,
    boschloo_region,
    independent_power,
    least_number,
    mcnemar_exact_p,
    mcnemar_mid_p,
    pair_chances,
    paired_difference_interval,
    paired_power,
    sign_flip_p,
    simulated_stop,
    wilson_interval,
)
from isaaclab_arena.storage.atomic import json_text
from tests.analysis.recorded_runs import arm_of, run_of
from tests.results.evidence import there


def test_the_power_of_pairs_counts_exactly_what_the_test_rejects():
    chances, num_pairs, power = PairChances(only_first=0.4, only_second=0.15), 9, 0.0
    for wins in range(num_pairs + 1):
        for losses in range(num_pairs + 1 - wins):
            if mcnemar_mid_p(wins, losses) <= 0.05:
                counts = [wins, losses, num_pairs - wins - losses]
                ways = np.prod([np.arange(1, num_pairs + 1)]) / np.prod([np.prod(np.arange(1, c + 1)) for c in counts])
                power += ways * 0.4**wins * 0.15**losses * 0.45 ** counts[2]
    assert paired_power(num_pairs, chances) == pytest.approx(power, abs=1e-12)


def test_boschloos_test_needs_33_episodes_and_keeps_its_level():
    assert least_number(lambda number: independent_power(number, 0.35, 0.7), power=0.8) == 33
    for rate in (0.03, 0.2, 0.5, 0.81, 0.97):
        assert independent_power(20, rate, rate) <= 0.05


def test_the_region_of_boschloos_test_is_that_of_its_p_values():
    region = boschloo_region(5)
    for first in range(6):
        for second in range(6):
            # scipy gives no number if all episodes end alike.
            p_value = np.nan_to_num(boschloo_exact([[first, second], [5 - first, 5 - second]]).pvalue, nan=1.0)
            if abs(p_value - 0.05) > 0.002:  # scipy searches for the worst rate on a grid of its own
                assert region[first, second] == (p_value <= 0.05), (first, second, p_value)


def test_equal_rates_can_never_be_told_apart():
    assert paired_power(50, PairChances(only_first=0.0, only_second=0.0)) == 0.0
    assert least_number(lambda number: independent_power(number, 0.5, 0.5), power=0.8, at_most=64) is None
    assert simulated_stop(PairChances(only_first=0.2, only_second=0.2), at_most=50) is None


@pytest.mark.parametrize(
    ("rates", "agreement", "mean"), [((0.9, 0.7), 0.5, 53), ((0.9, 0.7), 0.0, 72), ((0.7, 0.5), 0.5, 72)]
)
def test_one_may_stop_after_as_many_pairs_as_in_simulations_elsewhere(rates, agreement, mean):
    stopped = simulated_stop(pair_chances(*rates, agreement=agreement))
    assert stopped == pytest.approx(mean, rel=0.1)


def counts(both: int, only_first: int, only_second: int, neither: int) -> PairCounts:
    return PairCounts(both=both, only_first=only_first, only_second=only_second, neither=neither)


@pytest.mark.parametrize(
    ("only_first", "only_second", "exact", "mid"),
    [
        (5, 15, 0.0413895, 0.0266037),
        (1, 8, 0.0390625, 0.0214844),
        (0, 6, 0.03125, 0.015625),
        (25, 11, 0.0288167, 0.0200739),
        (10, 10, 1.0, 0.911902),
        (0, 0, 1.0, 1.0),
    ],
)
def test_the_p_values_of_mcnemars_test_are_those_of_the_literature(only_first, only_second, exact, mid):
    for one, other in ((only_first, only_second), (only_second, only_first)):
        assert mcnemar_exact_p(one, other) == pytest.approx(exact, abs=1e-6)
        assert mcnemar_mid_p(one, other) == pytest.approx(mid, abs=1e-6)


@pytest.mark.parametrize(
    ("pairs", "difference", "low", "high"),
    [
        (counts(36, 12, 2, 0), 0.2000, 0.0569, 0.3404),
        (counts(212, 144, 256, 707), -0.0849, -0.1142, -0.0554),
        (counts(20, 1, 13, 16), -0.2400, -0.3634, -0.0996),
        (counts(43, 12, 10, 35), 0.0200, -0.0726, 0.1119),
        (counts(10, 0, 0, 0), 0.0000, -0.2775, 0.2775),
    ],
)
def test_the_interval_of_a_paired_difference_is_that_of_newcombe(pairs, difference, low, high):
    interval = there(paired_difference_interval(pairs))
    # The paper prints four digits.
    assert (pairs.difference, interval.low, interval.high) == pytest.approx((difference, low, high), abs=1e-4)


def test_the_interval_turns_round_with_the_policies_and_no_pairs_have_none():
    one = there(paired_difference_interval(counts(20, 1, 13, 16)))
    other = there(paired_difference_interval(counts(20, 13, 1, 16)))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert counts(0, 0, 0, 0).difference is paired_difference_interval(counts(0, 0, 0, 0)) is None


def flipped(sums: list[int]) -> tuple[float, float]:
    """Return both p-values by trying every way to exchange the policies of whole conditions."""
    found = [abs(sum(sign * each for sign, each in zip(signs, sums, strict=True)))
             for signs in itertools.product((1, -1), repeat=len(sums))]  # fmt: skip
    observed = abs(sum(sums))
    exact = sum(each >= observed for each in found) / len(found)
    return exact, exact - sum(each == observed for each in found) / len(found) / 2


@pytest.mark.parametrize("sums", [[20, 20], [2, 0, 1, 2], [3, -1, 2, 2, -3], [1, 1, -1, 0], [2, -2]], ids=str)
def test_pairs_of_one_condition_are_exchanged_together(sums):
    differences = np.concatenate([np.full(abs(each), np.sign(each)) for each in sums] + [np.zeros(len(sums))])
    draws = np.concatenate([np.repeat(np.arange(len(sums)), np.abs(sums)), np.arange(len(sums))])
    assert sign_flip_p(differences, draws) == pytest.approx(flipped(sums))


def test_where_all_conditions_differ_it_is_mcnemars_test_and_where_no_pair_does_nothing_is_found():
    differences = np.array([1] * 15 + [-1] * 5 + [0] * 7)
    assert sign_flip_p(differences, np.arange(27)) == (mcnemar_exact_p(15, 5), mcnemar_mid_p(15, 5))
    assert sign_flip_p(np.zeros(4), np.array([0, 0, 1, 1])) == (1.0, 1.0)


def test_pairs_that_are_repeated_widen_the_interval_to_that_of_the_different_ones():
    expected = there(paired_difference_interval(counts(4, 3, 1, 2)))
    found = there(paired_difference_interval(counts(20, 15, 5, 10), design_effect=5.0))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_two_starts_that_are_played_twenty_times_are_two_pairs(tmp_path):
    often, once = (
        compare_pairs(new, old, match(new, old), Question())
        for number in (20, 1)
        for new, old in [[arm_of(tmp_path / f"{who}{number}", who * 2 * number, starts=2) for who in "sf"]]
    )
    assert (often.counts.total, often.distinct, often.verdict) == (40, 2, Verdict.UNDECIDED)
    assert (often.mid_p, often.exact_p) == pytest.approx((0.25, 0.5))
    assert (often.interval.low, often.interval.high) == pytest.approx((once.interval.low, once.interval.high))
    assert often.intervals[0].low == pytest.approx(once.intervals[0].low)
    assert often.detectable == once.detectable
    assert there(often.length).p_value == there(once.length).p_value


def test_a_comparison_says_how_many_different_conditions_its_pairs_have_where_some_repeat(tmp_path):
    run = run_of(tmp_path / "run", {"old": "sf" * 4, "new": "s" * 8, "other": "f" * 8}, starts=4)
    report = compare_with_job(run, "old", Question())
    told = list(sentences(report))
    # The baseline's episodes are in the pairs of both candidates.
    for words in ("new / old: 8 pairs have 4 different conditions", "together: 16 pairs have 4 different conditions"):
        assert any(line.startswith(words) for line in told)
    said = json.loads(json_text(document(report)))
    assert [each["distinct_conditions"] for each in (*said["tasks"], said["together"])] == [4, 4, 4]
    write_comparison(tmp_path, report)
    header, *lines = (tmp_path / "comparison.csv").read_text().splitlines()
    assert header.endswith(",distinct_conditions")
    assert all(line.endswith(",4") for line in lines)
    for name, between in (("comparison.md", " | "), ("comparison.tex", " & ")):
        assert f"{between}8 (4 distinct){between}" in (tmp_path / name).read_text()
        assert f"{between}16 (4 distinct){between}" in (tmp_path / name).read_text()
    report = compare_with_job(run_of(tmp_path / "other", {"old": "sf" * 4, "new": "s" * 8}), "old", Question())
    write_comparison(tmp_path, report)
    assert "distinct" not in (tmp_path / "comparison.csv").read_text() + (tmp_path / "comparison.json").read_text()
    assert not any("different conditions" in line for line in sentences(report))


def test_places_of_a_leaderboard_stand_on_different_conditions(tmp_path):
    found = leaderboard([run_of(tmp_path / "run", {"good": "s" * 40, "bad": "f" * 40}, starts=2)], Question())
    two = there(wilson_interval(2, 2))
    assert [place.distinct_conditions for place in found.places] == [2, 2]
    assert found.places[0].interval.low == found.places[0].mean_interval.low == pytest.approx(two.low)
    # Forty pairs would tell them apart, two do not.
    assert [place.like for place in found.places] == [("bad",), ("good",)]


def test_the_best_is_not_scored_by_conditions_that_it_was_chosen_by(tmp_path):
    def best(**jobs: str):
        arms = run_of(tmp_path / "-".join(jobs), jobs, starts={"a": 2, "same": 1}.get(next(iter(jobs)))).arms
        return choose_best({name: [arm] for name, arm in arms.items()}), arms

    choice, arms = best(a="sf" * 4, b="fs" * 4)
    choice = there(choice)
    assert (choice.name, choice.rate_when_chosen, choice.rate, choice.episodes) == ("a", 1.0, 0.0, 4)
    assert "over the 4 of odd index (1 different condition)" in choice.sentence
    assert (choice.tied, len(not_chosen_by(arms["a"]).episodes)) == ((), 4)
    choice = there(best(b="sfss", c="fsfs", a="ssss")[0])
    assert (choice.name, choice.tied) == ("b", ("a",))
    assert "100.0 %, as good as a, and first in the run" in choice.sentence
    assert best(same="ssss", other="ffff")[0] is None
