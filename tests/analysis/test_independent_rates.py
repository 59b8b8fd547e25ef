import numpy as np
import pytest
from scipy.stats import binom, fisher_exact
from statsmodels.stats.proportion import confint_proportions_2indep

from isaaclab_arena.analysis.rates import boschloo_p, independent_difference_interval


@pytest.mark.parametrize(
    ("arms", "low", "high"),
    [
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((6, 7, 2, 7), 0.0582, 0.8062),
        ((5, 56, 0, 29), -0.0381, 0.1926),
    ],
)
def test_the_interval_of_a_difference_is_that_of_newcombe_and_of_statsmodels(arms, low, high):
    interval = independent_difference_interval(*arms)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=6e-5)
    assert (interval.low, interval.high) == pytest.approx(
        confint_proportions_2indep(*arms, method="newcomb", compare="diff"), abs=1e-9
    )


def test_boschloos_p_value_is_the_level_of_fishers_test_at_the_worst_rate():
    fishers = np.array(
        [[fisher_exact([[a, b], [12 - a, 10 - b]], alternative="greater")[1] for b in range(11)] for a in range(13)]
    )
    as_extreme = fishers <= fishers[7, 1] * (1.0 + 1e-9)
    rates = np.linspace(0.0, 1.0, 2_001)[:, None]
    first, second = binom.pmf(np.arange(13), 12, rates), binom.pmf(np.arange(11), 10, rates)
    worst = np.sum((first @ as_extreme) * second, axis=1).max()
    assert boschloo_p(7, 12, 1, 10) == pytest.approx(2.0 * worst, abs=1e-4)
    assert worst < fishers[7, 1]


def test_arms_that_are_all_alike_do_not_differ():
    assert boschloo_p(10, 10, 10, 10) == 1.0
    assert boschloo_p(0, 10, 0, 10) == 1.0


def test_an_arm_without_episodes_has_no_difference():
    assert boschloo_p(0, 0, 3, 5) is None
    assert independent_difference_interval(3, 5, 0, 0) is None
