import pytest

from benchmarks.gpu.crossover import crossover


def test_between_two_numbers_of_worlds_it_is_where_the_lines_cross_in_logarithms():
    # The GPU gains tenfold from 10 to 1,000 worlds, and half of that in logarithms is at 100.
    found = crossover([(10, 1.0, 10**0.5), (1000, 10.0, 10**0.5)])
    assert found.worlds == pytest.approx(100)
    assert str(found) == "100"


def test_a_gpu_that_is_always_quicker_crosses_below_what_was_measured():
    assert str(crossover([(4096, 9.0, 1.0), (16, 2.0, 1.0)])) == "below 16"


def test_a_gpu_that_is_not_quicker_crosses_above_what_was_measured():
    assert str(crossover([(16, 0.1, 1.0), (4096, 0.9, 1.0)])) == "above 4,096"


def test_a_gpu_that_is_quicker_only_for_a_while_has_not_crossed():
    assert str(crossover([(16, 2.0, 1.0), (64, 3.0, 1.0), (256, 0.5, 1.0)])) == "above 256"


def test_of_several_crossings_it_is_the_last_that_counts():
    found = crossover([(1, 2.0, 1.0), (10, 0.5, 1.0), (100, 2.0, 1.0)])
    assert found.worlds == pytest.approx(10 * 10**0.5)


def test_equal_speeds_count_as_crossed():
    assert str(crossover([(1, 0.5, 1.0), (64, 1.0, 1.0)])) == "64"
