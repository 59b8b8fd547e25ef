from dataclasses import replace

from isaaclab_arena.evaluation.learning_curve import best_of, scores_of, write_curve
from isaaclab_arena.results.statistics import wilson_interval
from tests.evaluation.watching.points import point


def test_every_job_weighs_the_same_in_the_score():
    score = scores_of([point(50, 10, 10), point(50, 0, 90, job="push")])[50]
    assert (score.success_rate, score.scored) == (0.5, 100)
    assert score.interval == wilson_interval(10, 100)


def test_a_score_says_of_how_many_conditions_it_is():
    twice = [point(50, 10, 10), point(50, 10, 10, job="push")]
    same = [replace(each, episodes=twice[0].episodes) for each in twice]
    assert [scores_of(points)[50].distinct for points in (twice, same)] == [20, 10]


def test_a_curve_says_of_how_many_conditions_its_points_are_where_some_repeat(tmp_path):
    first, later = point(50, 10, 10), point(100, 5, 10)
    episodes = replace(later.episodes, conditions=["one"] * 5 + ["other"] * 5)
    repeated = replace(later, episodes=episodes, distinct=2)
    for points, told in (((first, later), ["10", "10"]), ((first, repeated), ["10", "10 (2 different conditions)"])):
        header, *lines = write_curve(tmp_path, points).read_text().splitlines()
        assert ("distinct_conditions" in header) is ("(" in told[1])
        cells = [line.split(" | ")[-1].removesuffix(" |") for line in (tmp_path / "curve.md").read_text().splitlines()]
        assert cells[2:] == told
    assert [line.rpartition(",")[2] for line in lines] == ["10", "2"]


def test_a_baseline_is_no_part_of_a_score():
    with_baseline = [point(50, 10, 20), point(50, 90, 90, job="scripted", is_baseline=True)]
    assert scores_of(with_baseline) == scores_of(with_baseline[:1])
    assert scores_of(with_baseline[1:]) == {}


def test_of_equal_checkpoints_the_earlier_is_the_best():
    best = best_of(scores_of([point(150, 90), point(50, 80), point(100, 90)]))
    assert best is not None
    assert best.step == 100
    assert best_of({}) is None
