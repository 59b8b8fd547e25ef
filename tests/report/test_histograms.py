import numpy as np

from isaaclab_arena.report.jobs import histogram


def test_every_episode_is_in_one_bin_with_how_it_came_out():
    generator = np.random.default_rng(1)
    values, won = generator.normal(size=333), generator.random(333) < 0.3
    bins = histogram(values, won)
    assert sum(each.count for each in bins) == 333
    assert sum(each.successes for each in bins) == won.sum()
    assert bins[0].low == values.min()
    assert bins[-1].high == values.max()


def test_bins_of_whole_numbers_hold_equally_many_of_them():
    values = np.repeat(np.arange(10, 60), 3).astype(float)
    bins = histogram(values, np.ones(150, bool), whole=True)
    assert {each.high - each.low for each in bins} == {bins[0].high - bins[0].low}
    assert sum(each.count for each in bins) == 150
    assert all(each.low == int(each.low) for each in bins)


def test_equal_values_make_one_bar_and_none_make_none():
    assert [each.count for each in histogram(np.full(5, 7.0), np.ones(5, bool)) if each.count] == [5]
    assert histogram(np.full(2, np.nan), np.ones(2, bool)) == ()
