"""The simulations by which intervals, tests and early decisions are judged."""

import numpy as np
import pytest

from benchmarks.analysis.decision_quality import (
    BOTH,
    ONLY_FIRST,
    ONLY_SECOND,
    Figure,
    Setting,
    coverage_of_rates,
    families_with_a_rejection,
    log_e_values,
    log_e_values_of_difference,
    log_e_values_of_rate,
    outcomes,
    rejected_by,
    stops,
    streams,
)
from isaaclab_arena.results.statistics import mcnemar_mid_p
from isaaclab_arena.results.stopping import (
    PairCounts,
    RateCounts,
    log_e_value_of_difference,
    log_e_value_of_equality,
    log_e_value_of_rate,
)

EQUAL = Setting(first=0.7, second=0.7, agreement=0.5)
UNEQUAL = Setting(first=0.9, second=0.7, agreement=0.5)


@pytest.fixture
def generator():
    return np.random.default_rng(1)


def test_pairs_have_the_rates_and_the_agreement_that_are_asked_for(generator):
    came_out = outcomes(UNEQUAL, (200_000,), generator)
    wins, losses, both = ((came_out == which).mean() for which in (ONLY_FIRST, ONLY_SECOND, BOTH))
    assert wins + both == pytest.approx(0.9, abs=0.005)
    assert losses + both == pytest.approx(0.7, abs=0.005)
    assert both == pytest.approx(0.5 * 0.7 + 0.5 * 0.63, abs=0.005)


def test_the_mid_p_test_keeps_its_level_unless_one_looks_at_it_again_and_again(generator):
    found = rejected_by(mcnemar_mid_p, EQUAL, pairs=200, repeats=2_000, generator=generator)
    assert 0.035 < found < 0.065
    came_out = outcomes(EQUAL, (1_000, 200), generator)
    wins, losses = (np.cumsum(came_out == which, axis=1) for which in (ONLY_FIRST, ONLY_SECOND))
    looks = [
        [mcnemar_mid_p(int(wins[stream, at]), int(losses[stream, at])) <= 0.05 for at in range(39, 200, 40)]
        for stream in range(1_000)
    ]
    assert np.mean(np.any(looks, axis=1)) > 0.09


@pytest.mark.parametrize("against_first", [True, False])
def test_a_family_finds_nothing_that_is_not_there(against_first, generator):
    found = families_with_a_rejection(
        0.6, policies=4, pairs=100, repeats=1_000, against_first=against_first, generator=generator
    )
    assert 0.01 < found < 0.06


def test_evidence_stops_few_streams_without_a_difference_and_all_with_one(generator):
    equal, unequal = (streams(each, looks=300, repeats=1_000, generator=generator) for each in (EQUAL, UNEQUAL))
    assert 0.01 < stops(log_e_values(equal.wins, equal.losses)).decided < 0.05
    found = stops(log_e_values(unequal.wins, unequal.losses))
    assert found.decided > 0.99
    assert 48.0 < found.mean_episodes < 58.0


def test_anytime_intervals_hold_the_truth_at_every_look(generator):
    assert 0.95 <= coverage_of_rates(0.5, looks=200, repeats=1_000, generator=generator) < 1.0


def test_every_figure_keeps_its_bar_or_is_marked():
    kept = Figure(what="error", setting="", value=0.04, at_most=0.05)
    missed = Figure(what="pairs", setting="", value=61.26, at_least=10.0, at_most=60.0, unit="pairs")
    assert kept.cells()[2:] == ("4.00 %", "at most 5 %", "yes")
    assert missed.cells()[2:] == ("61.3 pairs", "at least 10, at most 60 pairs", "NO")


def test_many_streams_at_once_have_the_evidence_that_each_has_alone():
    generator = np.random.default_rng(2)
    wins, losses, alike = generator.integers(0, 40, size=(3, 50))
    streams = list(zip(wins.tolist(), losses.tolist(), alike.tolist(), strict=True))
    pairs = [PairCounts(both=same, only_first=won, only_second=lost, neither=0) for won, lost, same in streams]
    assert log_e_values(wins, losses) == pytest.approx([log_e_value_of_equality(each) for each in pairs])
    for difference in (-0.2, 0.0, 0.1):
        assert log_e_values_of_difference(wins, losses, alike, difference) == pytest.approx(
            [log_e_value_of_difference(each, difference) for each in pairs]
        )
    rates = [RateCounts(successes=won, trials=won + lost) for won, lost, _ in streams]
    assert log_e_values_of_rate(wins, losses, 0.8) == pytest.approx([log_e_value_of_rate(each, 0.8) for each in rates])
