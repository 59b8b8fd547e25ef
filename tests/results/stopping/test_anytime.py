import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import beta

from isaaclab_arena.results.statistics import rate_interval
from isaaclab_arena.results.stopping import PairCounts, RateCounts, log_e_value_of_equality, log_e_value_of_rate


def log_e_value(wins: int, losses: int) -> float:
    return log_e_value_of_equality(PairCounts(both=3, only_first=wins, only_second=losses, neither=1))


def density(chance: float, wins: int, losses: int) -> float:
    """Jeffreys' prior times what the outcomes are worth against a fair coin."""
    prior = chance**-0.5 * (1.0 - chance) ** -0.5 / beta(0.5, 0.5)
    return prior * (2.0 * chance) ** wins * (2.0 * (1.0 - chance)) ** losses


@pytest.mark.parametrize(("wins", "losses"), [(1, 0), (3, 1), (9, 2), (2, 9)])
def test_an_e_value_is_the_wealth_of_a_mixture_of_bets(wins, losses):
    whole, _ = quad(density, 0.0, 1.0, args=(wins, losses))
    assert log_e_value(wins, losses) == pytest.approx(math.log(whole), abs=1e-6)


def test_a_fair_game_makes_nobody_rich_however_often_one_looks():
    generator = np.random.default_rng(1)
    false_stops = 0
    for stream in generator.integers(0, 2, size=(400, 300)):
        wins = np.cumsum(stream)
        false_stops += any(
            log_e_value(int(won), int(seen - won)) >= math.log(20.0) for seen, won in enumerate(wins, start=1)
        )
    assert false_stops / 400 <= 0.05


def test_the_interval_of_a_rate_holds_the_rate_and_narrows():
    assert (rate_interval(0, 0).low, rate_interval(0, 0).high) == (0.0, 1.0)
    widths = []
    for trials in (10, 100, 1_000):
        interval = rate_interval(int(0.9 * trials), trials)
        assert interval.low < 0.9 < interval.high
        widths.append(interval.high - interval.low)
    assert widths == sorted(widths, reverse=True)
    assert rate_interval(20, 20).high == 1.0
    assert rate_interval(0, 20).low == 0.0


def test_at_the_ends_of_the_interval_the_evidence_is_just_enough():
    interval = rate_interval(18, 20, alpha=0.05)
    for rate in (interval.low, interval.high):
        wealth, _ = quad(_wealth, 0.0, 1.0, args=(rate,))
        assert wealth == pytest.approx(20.0, rel=1e-4)


def _wealth(chance: float, rate: float) -> float:
    prior = chance**-0.5 * (1.0 - chance) ** -0.5 / beta(0.5, 0.5)
    return prior * (chance / rate) ** 18 * ((1.0 - chance) / (1.0 - rate)) ** 2


def test_a_level_that_is_no_chance_is_refused():
    with pytest.raises(ValueError, match="alpha must be between 0 and 1, got 1"):
        rate_interval(1, 2, alpha=1.0)


def test_nothing_is_more_than_evidence_against_what_cannot_be():
    assert log_e_value_of_rate(RateCounts(successes=1, trials=1), 0.0) == math.inf
    assert log_e_value_of_rate(RateCounts(successes=0, trials=0), 0.0) == 0.0
