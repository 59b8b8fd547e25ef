"""Rates, intervals and clusters."""

import statistics

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from isaaclab_arena.interfaces.episode import SEED_CONDITION
from isaaclab_arena.results.statistics import (
    Interval,
    ScoredEpisodes,
    clopper_pearson_interval,
    design_effect,
    draws_of,
    influences,
    mean_of_tasks,
    mean_rate_interval,
    means_of_draws,
    paired_difference_interval,
    paired_share,
    standard_deviation,
    together,
    wilson_interval,
)
from isaaclab_arena.results.stopping import PairCounts, condition_key
from tests.results.evidence import there

# successes, trials, Clopper-Pearson, Wilson, as Newcombe (1998) prints them.
REFERENCES = [
    (81, 263, (0.2527, 0.3676), (0.2553, 0.3662)),
    (15, 148, (0.0578, 0.1617), (0.0624, 0.1605)),
    (0, 20, (0, 0.1684), (0, 0.1611)),
    (1, 29, (0.0009, 0.1776), (0.0061, 0.1718)),
]


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def close_to(interval: Interval | None):
    return pytest.approx(ends(interval))


@pytest.mark.parametrize(("successes", "trials", "exact", "wilson"), REFERENCES)
def test_intervals_have_the_published_values(successes, trials, exact, wilson):
    assert ends(clopper_pearson_interval(successes, trials)) == pytest.approx(exact, abs=5.1e-5)
    assert ends(wilson_interval(successes, trials)) == pytest.approx(wilson, abs=5.1e-5)


@pytest.mark.parametrize("trials", [1, 7, 200, 10_000])
@pytest.mark.parametrize(("interval", "method"), [(wilson_interval, "wilson"), (clopper_pearson_interval, "beta")])
def test_intervals_agree_with_statsmodels(trials, interval, method):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        low, high = ends(interval(successes, trials))
        assert (low, high) == pytest.approx(proportion_confint(successes, trials, method=method), abs=1e-9)
        assert 0 <= low <= successes / trials <= high <= 1
    assert interval(0, 0) is None


@pytest.mark.parametrize(
    ("counts", "wrong", "named"),
    [
        *((counts, {}, "successes") for counts in ((3, 2), (-1, 2), (0, -1))),
        *(((5, 10), {"confidence": value}, "confidence") for value in (95, -1, 0.0, float("nan"))),
        *(((5, 10), {"design_effect": value}, "design_effect") for value in (-3.0, 0.0)),
    ],
)
def test_counts_a_confidence_and_a_design_effect_out_of_range_are_refused(counts, wrong, named):
    with pytest.raises(ValueError, match=f"{named} must be"):
        wilson_interval(*counts, **wrong)
    assert wilson_interval(5, 10, confidence=1.0 - 1e-17) == Interval(low=0.0, high=1.0)


@pytest.mark.parametrize("values", [[38.0, 41.5, 37.25, 60.0], [3.0] * 5, [3.0], []])
def test_the_standard_deviation_is_that_of_a_sample(values):
    expected = pytest.approx(statistics.stdev(values)) if len(values) > 1 else None
    assert standard_deviation(values) == expected


@pytest.mark.parametrize("tasks", [[(50, 50)] * 10, [(0, 20)] * 5, [(1, 1)] * 7, [(3, 10)]])
def test_the_interval_of_a_mean_is_wilsons_where_all_trials_are_alike_or_of_one_task_and_none_of_nothing(tasks):
    assert mean_rate_interval(tasks) == wilson_interval(*np.sum(tasks, axis=0).tolist())
    assert mean_rate_interval([]) is mean_rate_interval([(3, 4), (0, 0)]) is None


def test_the_interval_of_a_mean_has_the_value_of_its_formula():
    # Variance (0.9 * 0.1 / 9 + 0.5 * 0.5 / 9) / 4, mean 0.7: as sure as 22.2353 trials at one rate.
    interval = there(mean_rate_interval([(9, 10), (5, 10)]))
    assert (interval.low, interval.high) == pytest.approx((0.4922, 0.8489), abs=5e-5)
    # A task of two trials has a variance too, and one that never varies has none: three trials at 0.75.
    few = there(mean_rate_interval([(1, 2), (2, 2)]))
    assert ends(few) == close_to(wilson_interval(3, 4, design_effect=4 / 3))
    # Where nothing varies, the tasks' numbers of trials count: 4 / (1 / 10 + 1 / 20) of 30.
    sure = mean_rate_interval([(10, 10), (20, 20)])
    assert ends(sure) == close_to(wilson_interval(30, 30, design_effect=9 / 8))
    # Tasks that differ much leave less to chance than as many episodes at one rate.
    pooled, sure = there(wilson_interval(52, 100)), there(mean_rate_interval([(50, 50), (2, 50)]))
    assert sure.high - sure.low < (pooled.high - pooled.low) / 2
    # Every task weighs the same however many trials it has.
    uneven = there(mean_rate_interval([(900, 1000), (1, 10)]))
    assert uneven.low < 0.5 < uneven.high
    assert uneven.high - uneven.low > 0.15


_RATES = {
    "alike": [0.9] * 10,
    "high": [0.98] * 10,
    "spread": np.linspace(0.05, 0.95, 10).tolist(),
    "two hard ones": [0.5] * 2 + [0.99] * 8,
    "most always solved": [0.6] * 3 + [1.0] * 7,
    "fifty": np.linspace(0.6, 1.0, 50).tolist(),
}


@pytest.mark.parametrize("trials", [1, 5, 50])
@pytest.mark.parametrize("rates", _RATES.values(), ids=_RATES)
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says(rates, trials):
    drawn = np.random.default_rng(0).binomial(trials, rates, (1_000, len(rates)))
    intervals = [mean_rate_interval([(int(successes), trials) for successes in each]) for each in drawn]
    covered = [each is not None and each.low <= np.mean(rates) <= each.high for each in intervals]
    # 1,000 draws of 95 % give less than 93 % in 2 of 1,000 tries.
    assert np.mean(covered) >= 0.92


def scored(success, places, environment: str = "lift", condition: str = "cube.x") -> ScoredEpisodes:
    """Return episodes that start from places: equal places, equal conditions."""
    keys = [condition_key(environment, None, f'{{"{condition}": {place}}}', 0) for place in places]
    return ScoredEpisodes(success=np.array(success, float), conditions=keys)


def seeded(success, seeds, environment: str) -> ScoredEpisodes:
    """Return episodes of an environment that draws everything from a seed."""
    return scored(success, seeds, environment, SEED_CONDITION)


def test_four_episodes_played_five_times_are_four():
    again = scored([1] * 20, [*range(4)] * 5)
    assert again.num_distinct == 4
    assert ends(again.wilson()) == close_to(wilson_interval(4, 4))
    mixed = scored([1, 1, 1, 0] * 5, [*range(4)] * 5)
    assert ends(mixed.wilson()) == close_to(wilson_interval(3, 4))
    exact = clopper_pearson_interval(mixed.successes, len(mixed), design_effect=mixed.design_effect)
    assert ends(exact) == close_to(clopper_pearson_interval(3, 4))
    assert ends(scored([0] * 20, [1] * 20).wilson()) == close_to(wilson_interval(0, 1))


def test_twenty_different_episodes_are_twenty_to_the_last_bit():
    different = scored([1, 1, 1, 0] * 5, range(20))
    assert different.num_distinct == len(different)
    assert (different.design_effect, different.wilson()) == (1.0, wilson_interval(15, 20))
    tasks = [different, scored([1, 0] * 5, range(10), "push")]
    assert mean_of_tasks(tasks) == mean_rate_interval([(15, 20), (5, 10)])


def test_tasks_that_get_the_same_seeds_and_come_out_alike_are_no_more_than_one_of_them():
    success = [1, 0, 1, 1, 0] * 4
    suite = [seeded(success, range(20), f"gym:{task}") for task in "abcd"]
    assert ends(mean_of_tasks(suite)) == pytest.approx(ends(wilson_interval(12, 20)), abs=0.01)
    assert together(suite).num_distinct == 20
    others = [seeded(success, range(20 * at, 20 * at + 20), f"gym:{at}") for at in range(4)]
    assert mean_of_tasks(others) == mean_rate_interval([(12, 20)] * 4)
    # Tasks that succeed everywhere are not taken to depend on each other.
    everywhere = [seeded([1] * 10, range(10), f"gym:{task}") for task in "ab"]
    assert ends(mean_of_tasks(everywhere)) == close_to(wilson_interval(20, 20))
    # Positions are others in another environment.
    assert together([scored([1], [0.5]), scored([1], [0.5], "push")]).num_distinct == 2


def test_the_design_effect_is_the_variance_of_the_sums_of_conditions_over_that_of_episodes():
    # Ten conditions succeed once in five episodes and ten always: sums of 1 and 5 around 3, episodes around 0.6.
    success, places = [1, 0, 0, 0, 0] * 10 + [1] * 50, np.repeat(np.arange(20), 5)
    keys = scored(success, places).conditions
    of_sums, of_episodes, few = 20 / 19 * 20 * 4, 100 * 0.24 * 100 / 99, (2.0930241 / 1.9599640) ** 2
    assert design_effect(np.array(success, float), keys) == pytest.approx(few * of_sums / of_episodes)
    # A rate has two more conditions with a twentieth of the weight: one succeeds in five episodes, one in none.
    of_sums += 20 / 19 * 0.05 * (2**2 + 3**2)
    assert scored(success, places).design_effect == pytest.approx(few * of_sums / of_episodes)


def test_values_of_conditions_have_the_mean_of_all_values():
    values, draws = np.array([1.0, 2.0, 6.0, 4.0]), draws_of(["a", "b", "a", "c"])
    assert draws.tolist() == [0, 1, 0, 2]
    assert means_of_draws(values, draws).tolist() == [3.5, 2.0, 4.0]
    assert influences(values, draws).mean() == pytest.approx(values.mean())
    assert influences(values, np.arange(4)) is values
    assert (len(together([])), together([]).rate, together([]).wilson()) == (0, None, None)


# The share of a success rate that a control reaches.


def pairs_of(both: int, only_first: int, only_second: int, neither: int) -> PairCounts:
    return PairCounts(both=both, only_first=only_first, only_second=only_second, neither=neither)


def test_the_interval_of_a_share_has_the_value_of_the_closed_form():
    counts = pairs_of(20, 12, 3, 5)
    share, interval = there(paired_share([counts]))
    assert share == pytest.approx(23 / 32)
    # Donner & Zou's formula, with the correlation of Newcombe's method 10.
    first, second = 32 / 40, 23 / 40
    one, two = there(wilson_interval(32, 40)), there(wilson_interval(23, 40))
    phi = (20 * 5 - 12 * 3 - 20) / np.sqrt(32 * 8 * 23 * 17)
    found = []
    for end, other, sign in ((two.low, one.high, -1), (two.high, one.low, 1)):
        middle = first * second - phi * abs(second - end) * abs(first - other)
        product = end * (2 * second - end) * other * (2 * first - other)
        found.append((middle + sign * np.sqrt(middle**2 - product)) / (other * (2 * first - other)))
    assert ends(interval) == pytest.approx(tuple(found))


@pytest.mark.parametrize(
    "counts", [(0, 12, 0, 8), (20, 0, 0, 0), (3, 9, 1, 7), (3, 8, 2, 7), (0, 0, 9, 1), (1, 0, 9, 9)]
)
def test_a_share_differs_from_all_exactly_where_the_difference_differs_from_nothing(counts):
    difference, found = there(paired_difference_interval(pairs_of(*counts))), paired_share([pairs_of(*counts)])
    if counts[0] + counts[1] == 0:
        assert found is None
        return
    share, interval = there(found)
    assert 0.0 <= interval.low <= share <= interval.high
    assert (interval.low <= 1.0 <= interval.high) == (difference.low <= 0.0 <= difference.high)


def test_the_share_of_a_suite_is_that_of_the_means_and_tasks_weigh_the_same():
    share, interval = there(paired_share([pairs_of(10, 0, 0, 0), pairs_of(0, 20, 0, 0)]))
    assert share == 0.5
    assert interval.low > 0.3
    assert interval.high < 0.7
    assert paired_share([pairs_of(5, 5, 0, 0)] * 2) != paired_share([pairs_of(5, 5, 0, 0)])
    assert paired_share([]) is paired_share([pairs_of(1, 0, 0, 0), pairs_of(0, 0, 0, 0)]) is None


@pytest.mark.parametrize("chances", [(0.1, 0.6, 0.05, 0.25), (0.6, 0.3, 0.05, 0.05), (0.02, 0.88, 0.0, 0.1)])
def test_the_interval_of_a_share_holds_it_in_95_of_100_samples(chances):
    true, held = (chances[0] + chances[2]) / (chances[0] + chances[1]), []
    for drawn in np.random.default_rng(0).multinomial(50, chances, 800).tolist():
        _, interval = there(paired_share([pairs_of(*drawn)]))
        held.append(interval.low <= true <= interval.high)
    assert 0.93 <= np.mean(held) <= 0.99
