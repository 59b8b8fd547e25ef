import pytest

from isaaclab_arena.training.closed_loop import EvaluatedJob
from isaaclab_arena.training.training_run import score_of


def job(success_rate: float | None, mean_return: float | None, mean_length: float | None) -> EvaluatedJob:
    return EvaluatedJob(episodes=10, success_rate=success_rate, mean_return=mean_return, mean_length=mean_length)


def test_of_two_that_always_succeed_the_quicker_is_better():
    slow, quick = (score_of([each], 1) for each in (job(1.0, 10.6, 12.8), job(1.0, 9.5, 10.0)))
    assert quick is not None
    assert quick.is_better_than(slow)


def test_success_counts_more_than_rewards():
    often, well_paid = (score_of([each], 1) for each in (job(0.9, 1.0, 100.0), job(0.8, 50.0, 100.0)))
    assert often is not None
    assert often.is_better_than(well_paid)


def test_where_success_is_not_measured_the_sum_of_rewards_decides():
    long, short = (score_of([each], 1) for each in (job(None, 90.0, 100.0), job(None, 50.0, 50.0)))
    assert long is not None
    assert long.is_better_than(short)
    assert long.success_rate == -1


def test_jobs_count_alike():
    score = score_of([job(1.0, 10.0, 10.0), job(0.0, 5.0, 10.0)], 3)
    assert score is not None
    assert (score.success_rate, score.merit, score.iterations) == (0.5, pytest.approx(0.75), 3)


def test_an_evaluation_without_episodes_says_nothing():
    assert score_of([job(None, None, None)], 1) is None
