import numpy as np
import pytest

from benchmarks.analysis.clustered_intervals import Coverage, Options, bootstrap, decisions_table, latent, main, played
from isaaclab_arena.results.statistics import Interval


@pytest.fixture
def generator():
    return np.random.default_rng(1)


@pytest.mark.parametrize("alike", [0.0, 0.3, 1.0])
def test_episodes_have_the_rate_and_come_out_as_alike_as_asked(generator, alike):
    success = played(0.7, (2_000, 20, 2), alike, generator)
    assert success.mean() == pytest.approx(0.7, abs=0.01)
    assert np.corrcoef(success[..., 0].ravel(), success[..., 1].ravel())[0, 1] == pytest.approx(alike, abs=0.02)
    numbers = latent((20_000, 2), 0.4, generator)
    assert np.corrcoef(numbers.T)[0, 1] == pytest.approx(0.4, abs=0.02)


def test_an_interval_holds_what_lies_between_its_ends():
    found = Coverage()
    for truth in (0.1, 0.5, 0.95, 1.0):
        found.add("some", Interval(low=0.1, high=0.9), truth)
    assert (found.share("some"), found.width("some")) == (0.5, pytest.approx(0.8))
    assert not found.keeps("some")


def test_the_bootstrap_draws_whole_conditions(generator):
    assert bootstrap(np.ones((4, 5)), 50, generator) == Interval(low=1.0, high=1.0)
    wide = bootstrap(np.repeat([[1.0], [0.0]], 50, axis=1), 400, generator)
    assert (wide.low, wide.high) == (0.0, 1.0)


def test_two_conditions_never_decide_however_often_they_are_played(generator, capsys):
    table, kept = decisions_table(Options(repeats=40), generator)
    assert kept
    assert "| 2 | 1 |" in str(table)
    capsys.readouterr()


def test_the_page_has_a_section_for_each_kind_of_figure(tmp_path, capsys):
    main(Options(repeats=2, resamples=10, output=tmp_path / "page.md"))
    page = (tmp_path / "page.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## One rate",
        "## Suites whose tasks share their seeds",
        "## Differences",
        "## Decisions while a run goes on",
    ]
    assert page.count("\n| ") > 60
    capsys.readouterr()
