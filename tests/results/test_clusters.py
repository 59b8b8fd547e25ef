"""Rates of episodes that share conditions: never surer than the conditions allow, and as before where all differ."""

import numpy as np
import pytest

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
    together,
    wilson_interval,
)
from isaaclab_arena.results.stopping import condition_key


def scored(success, places, environment: str = "lift") -> ScoredEpisodes:
    """Return episodes that start from places: equal places, equal conditions."""
    keys = [condition_key(environment, None, f'{{"cube.x": {place}}}', 0) for place in places]
    return ScoredEpisodes(success=np.array(success, float), conditions=keys)


def seeded(success, seeds, environment: str) -> ScoredEpisodes:
    """Return episodes of an environment that draws everything from a seed."""
    keys = [condition_key(environment, None, f'{{"{SEED_CONDITION}": {seed}}}', 0) for seed in seeds]
    return ScoredEpisodes(success=np.array(success, float), conditions=keys)


def close_to(interval: Interval | None):
    assert interval is not None
    return pytest.approx((interval.low, interval.high))


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def test_four_episodes_played_five_times_are_four():
    again = scored([1] * 20, [*range(4)] * 5)
    assert (again.num_distinct, again.are_distinct) == (4, False)
    assert ends(again.wilson()) == close_to(wilson_interval(4, 4))
    mixed = scored([1, 1, 1, 0] * 5, [*range(4)] * 5)
    assert ends(mixed.wilson()) == close_to(wilson_interval(3, 4))
    exact = clopper_pearson_interval(mixed.successes, len(mixed), design_effect=mixed.design_effect)
    assert ends(exact) == close_to(clopper_pearson_interval(3, 4))
    assert ends(scored([0] * 20, [1] * 20).wilson()) == close_to(wilson_interval(0, 1))


def test_twenty_different_episodes_are_twenty_to_the_last_bit():
    different = scored([1, 1, 1, 0] * 5, range(20))
    assert different.are_distinct
    assert (different.design_effect, different.wilson()) == (1.0, wilson_interval(15, 20))
    tasks = [different, scored([1, 0] * 5, range(10), "push")]
    assert mean_of_tasks(tasks) == mean_rate_interval([(15, 20), (5, 10)])


def test_noise_that_differs_within_conditions_counts_for_more_than_the_conditions_alone():
    generator = np.random.default_rng(3)
    noisy = scored(generator.random(200) < 0.6, [*range(40)] * 5)
    assert 1.0 <= noisy.design_effect < 2.5
    assert noisy.wilson() == wilson_interval(noisy.successes, 200, design_effect=noisy.design_effect)


def test_tasks_that_get_the_same_seeds_and_come_out_alike_are_no_more_than_one_of_them():
    success = [1, 0, 1, 1, 0] * 4
    suite = [seeded(success, range(20), f"gym:{task}") for task in "abcd"]
    assert ends(mean_of_tasks(suite)) == pytest.approx(ends(wilson_interval(12, 20)), abs=0.01)
    assert together(suite).num_distinct == 20
    others = [seeded(success, range(20 * at, 20 * at + 20), f"gym:{at}") for at in range(4)]
    assert mean_of_tasks(others) == mean_rate_interval([(12, 20)] * 4)


def test_tasks_that_succeed_everywhere_are_not_taken_to_depend_on_each_other():
    suite = [seeded([1] * 10, range(10), f"gym:{task}") for task in "ab"]
    assert ends(mean_of_tasks(suite)) == close_to(wilson_interval(20, 20))


def test_positions_are_others_in_another_environment_but_seeds_are_not():
    assert together([scored([1], [0.5]), scored([1], [0.5], "push")]).num_distinct == 2
    assert together([seeded([1], [7], "gym:a"), seeded([1], [7], "gym:b")]).num_distinct == 1


def test_a_task_with_one_start_counts_once():
    suite = [scored([1, 0, 1, 1], [at] * 4) for at in range(5)]
    assert design_effect(
        together(suite).success, together(suite).conditions, strata=np.arange(20) // 4
    ) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("num_conditions", "repeats", "share"), [(5, 4, 1.0), (10, 4, 0.3), (20, 5, 0.5), (20, 20, 0.2)]
)
def test_intervals_hold_the_rate_where_those_of_as_many_different_episodes_would_not(num_conditions, repeats, share):
    generator, rate, times = np.random.default_rng(1), 0.7, 300
    alike = generator.random((times, num_conditions)) < rate
    decided = generator.random((times, num_conditions, repeats)) < share
    own = generator.random((times, num_conditions, repeats)) < rate
    success = np.where(decided, alike[:, :, None], own).reshape(times, -1)
    places = np.repeat(np.arange(num_conditions), repeats)
    found = [scored(each, places).wilson() for each in success]
    held = np.mean([each is not None and each.low <= rate <= each.high for each in found])
    naive = [wilson_interval(int(each.sum()), len(each)) for each in success]
    assert held >= 0.92
    assert np.mean([each is not None and each.low <= rate <= each.high for each in naive]) < held


def test_values_of_conditions_have_the_mean_of_all_values():
    values, draws = np.array([1.0, 2.0, 6.0, 4.0]), draws_of(["a", "b", "a", "c"])
    assert draws.tolist() == [0, 1, 0, 2]
    assert means_of_draws(values, draws).tolist() == [3.5, 2.0, 4.0]
    assert influences(values, draws).mean() == pytest.approx(values.mean())
    assert influences(values, np.arange(4)) is values


def test_no_jobs_together_have_no_episode_and_no_interval():
    assert len(together([])) == 0
    assert together([]).wilson() is None
