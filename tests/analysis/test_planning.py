import numpy as np
import pytest
from scipy.stats import boschloo_exact

from isaaclab_arena.results.statistics import (
    PairChances,
    boschloo_region,
    independent_power,
    least_number,
    mcnemar_mid_p,
    pair_chances,
    paired_power,
    simulated_stop,
)


@pytest.mark.parametrize(
    ("rates", "num_pairs", "independent", "half_alike"),
    [
        ((0.9, 0.7), 100, 0.95, 0.99),
        ((0.8, 0.7), 100, 0.35, 0.53),
        ((0.8, 0.7), 200, 0.64, 0.85),
        ((0.8, 0.7), 500, 0.95, 1.0),
    ],
)
def test_the_power_of_pairs_is_that_of_simulations(rates, num_pairs, independent, half_alike):
    for agreement, simulated in ((0.0, independent), (0.5, half_alike)):
        power = paired_power(num_pairs, pair_chances(*rates, agreement=agreement))
        # Four thousand simulated runs, rounded to two digits.
        assert power == pytest.approx(simulated, abs=0.02)


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
    region = boschloo_region(7)
    for first in range(8):
        for second in range(8):
            # scipy gives no number if all episodes end alike.
            p_value = np.nan_to_num(boschloo_exact([[first, second], [7 - first, 7 - second]]).pvalue, nan=1.0)
            if abs(p_value - 0.05) > 0.002:  # scipy searches for the worst rate on a grid of its own
                assert region[first, second] == (p_value <= 0.05), (first, second, p_value)


def test_equal_rates_can_never_be_told_apart():
    assert paired_power(50, PairChances(only_first=0.0, only_second=0.0)) == 0.0
    assert least_number(lambda number: independent_power(number, 0.5, 0.5), power=0.8, at_most=64) is None


def test_rates_and_agreements_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"the rate must be 0 to 1, got 1\.2"):
        pair_chances(1.2, 0.5, agreement=0.0)
    with pytest.raises(ValueError, match=r"the agreement must be 0 to 1, got -0\.1"):
        pair_chances(0.2, 0.5, agreement=-0.1)
    with pytest.raises(ValueError, match="power must be between 0 and 1"):
        least_number(lambda number: 1.0, power=1.0)


@pytest.mark.parametrize(
    ("rates", "agreement", "mean"), [((0.9, 0.7), 0.5, 53), ((0.9, 0.7), 0.0, 72), ((0.7, 0.5), 0.5, 72)]
)
def test_one_may_stop_after_as_many_pairs_as_in_simulations_elsewhere(rates, agreement, mean):
    stopped = simulated_stop(pair_chances(*rates, agreement=agreement))
    assert stopped == pytest.approx(mean, rel=0.1)


def test_policies_that_are_alike_are_never_decided():
    assert simulated_stop(PairChances(only_first=0.2, only_second=0.2), at_most=50) is None
