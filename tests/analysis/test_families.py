import numpy as np
import pytest
from scipy.stats import bootstrap
from statsmodels.stats.multitest import multipletests

from isaaclab_arena.results.statistics import holm, mean_interval, mean_of_tasks_interval, signed_rank_p


def test_holms_values_are_those_of_statsmodels():
    p_values = [0.04, 0.001, 0.03, 0.2, 0.001, 0.9]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([]) == []


def test_the_interval_of_a_mean_holds_it_and_is_the_same_each_time():
    values = np.random.default_rng(2).exponential(2.0, 60).tolist()
    interval = mean_interval(values)
    assert interval is not None
    assert interval.low < np.mean(values) < interval.high
    assert interval == mean_interval(values)
    # An exponential's tail is on the right, and the interval reaches further to that side.
    assert interval.high - np.mean(values) > np.mean(values) - interval.low


@pytest.mark.parametrize("draw", ["exponential", "standard_normal", "standard_cauchy"])
def test_the_interval_of_many_values_is_that_of_many_resamples(draw):
    values = np.clip(getattr(np.random.default_rng(4), draw)(size=1_000), -30.0, 30.0)
    found, drawn = (
        mean_interval(values.tolist()),
        bootstrap((values,), np.mean, n_resamples=40_000, rng=np.random.default_rng(5), batch=1_000),
    )
    assert found is not None
    standard_error = values.std() / np.sqrt(1_000)
    # So many resamples know an end to about 0.02 standard errors.
    assert found.low == pytest.approx(drawn.confidence_interval.low, abs=0.05 * standard_error)
    assert found.high == pytest.approx(drawn.confidence_interval.high, abs=0.05 * standard_error)


def test_values_that_are_all_alike_have_an_interval_without_width():
    interval = mean_interval([3.0, 3.0, 3.0])
    assert interval is not None
    assert (interval.low, interval.high) == (3.0, 3.0)
    assert mean_interval([3.0]) is None


def test_every_task_weighs_the_same_however_many_episodes_it_has():
    outcomes = {"easy": [1.0] * 400, "hard": [0.0, 1.0] * 10}
    interval = mean_of_tasks_interval(outcomes)
    assert interval is not None
    assert interval.low < 0.75 < interval.high
    # Only the hard task has a spread: half of 1.96 standard errors of 20 coins.
    assert interval.high - interval.low == pytest.approx(1.96 * np.sqrt(0.25 / 20), abs=0.03)
    assert mean_of_tasks_interval({"easy": [], "hard": [1.0]}) is None


def test_both_ways_of_drawing_resamples_agree():
    generator = np.random.default_rng(3)
    coarse = generator.integers(0, 2, 400).astype(float)
    fine = coarse + generator.normal(0.0, 1e-6, 400)
    first, second = mean_of_tasks_interval({"task": coarse.tolist()}), mean_of_tasks_interval({"task": fine.tolist()})
    assert first is not None
    assert second is not None
    assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.006)


def test_pairs_that_never_differ_have_the_largest_p_value():
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(0.03125)
