import itertools

import numpy as np
import pytest

from isaaclab_arena.results.statistics import (
    PairCounts,
    mcnemar_exact_p,
    mcnemar_mid_p,
    paired_difference_interval,
    sign_flip_p,
)


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
    interval = paired_difference_interval(pairs)
    assert interval is not None
    # The paper prints four digits.
    assert (pairs.difference, interval.low, interval.high) == pytest.approx((difference, low, high), abs=1e-4)


def test_the_interval_turns_round_with_the_policies():
    one = paired_difference_interval(counts(20, 1, 13, 16))
    other = paired_difference_interval(counts(20, 13, 1, 16))
    assert one is not None
    assert other is not None
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


def test_no_pairs_have_no_difference():
    assert counts(0, 0, 0, 0).difference is None
    assert paired_difference_interval(counts(0, 0, 0, 0)) is None


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        counts(1, -1, 0, 0)


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


def test_where_no_pair_differs_nothing_is_found():
    assert sign_flip_p(np.zeros(4), np.array([0, 0, 1, 1])) == (1.0, 1.0)


def test_where_all_conditions_differ_it_is_mcnemars_test():
    differences = np.array([1] * 15 + [-1] * 5 + [0] * 7)
    assert sign_flip_p(differences, np.arange(27)) == (mcnemar_exact_p(15, 5), mcnemar_mid_p(15, 5))


def test_pairs_that_are_repeated_widen_the_interval_to_that_of_the_different_ones():
    once = PairCounts(both=4, only_first=3, only_second=1, neither=2)
    often = PairCounts(both=20, only_first=15, only_second=5, neither=10)
    expected, found = paired_difference_interval(once), paired_difference_interval(often, design_effect=5.0)
    assert expected is not None
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
