from pathlib import Path

import pytest

from isaaclab_arena.models.rsl_rl_checkpoint import BEST_FILE, model_path
from isaaclab_arena.training.checkpoints import Score, best_score, keep_best, score_of
from isaaclab_arena.training.training_loop import EvaluatedJob


def scores(*jobs: EvaluatedJob) -> list[Score | None]:
    return [score_of([job], 1, evaluation="jobs") for job in jobs]


def job(success_rate: float | None, mean_return: float | None, mean_length: float | None) -> EvaluatedJob:
    return EvaluatedJob(episodes=10, success_rate=success_rate, mean_return=mean_return, mean_length=mean_length)


def better(directory: Path, score: Score | None, other: Score | None) -> bool:
    """Whether a checkpoint is kept after another one."""
    assert score is not None
    assert other is not None
    model_path(directory, 1).touch()
    return keep_best(directory, other) and keep_best(directory, score)


def test_of_two_that_always_succeed_the_quicker_is_better(tmp_path):
    slow, quick = scores(job(1.0, 10.6, 12.8), job(1.0, 9.5, 10.0))
    assert better(tmp_path, quick, slow)


def test_success_counts_more_than_rewards(tmp_path):
    often, well_paid = (
        score_of([each], 1, evaluation="jobs") for each in (job(0.9, 1.0, 100.0), job(0.8, 50.0, 100.0))
    )
    assert better(tmp_path, often, well_paid)


def test_where_success_is_not_measured_the_sum_of_rewards_decides(tmp_path):
    long, short = scores(job(None, 90.0, 100.0), job(None, 50.0, 50.0))
    assert better(tmp_path, long, short)
    assert long is not None
    assert long.success_rate == -1


def test_jobs_count_alike():
    score = score_of([job(1.0, 10.0, 10.0), job(0.0, 5.0, 10.0)], 3, evaluation="jobs")
    assert score is not None
    assert (score.success_rate, score.merit, score.iterations) == (0.5, pytest.approx(0.75), 3)


def test_an_evaluation_without_episodes_says_nothing():
    assert score_of([job(None, None, None)], 1, evaluation="jobs") is None


def score(success_rate: float, merit: float, iterations: int, evaluation: str = "jobs") -> Score:
    return Score(success_rate=success_rate, merit=merit, iterations=iterations, evaluation=evaluation)


def test_of_equal_success_the_better_rewards_are_best(tmp_path):
    assert better(tmp_path, score(0.9, 1.5, 1), score(0.9, 1.0, 1))
    assert not keep_best(tmp_path, score(0.9, 1.5, 1))


def test_the_best_checkpoint_outlives_newer_ones(tmp_path):
    model_path(tmp_path, 50).write_text("the fiftieth")
    assert keep_best(tmp_path, score(0.9, 1.0, 50))
    model_path(tmp_path, 50).unlink()
    assert not keep_best(tmp_path, score(0.8, 9.0, 100))
    assert (tmp_path / BEST_FILE).read_text() == "the fiftieth"
    assert best_score(tmp_path) == score(0.9, 1.0, 50)


def test_scores_of_unlike_evaluations_are_not_compared(tmp_path, caplog):
    model_path(tmp_path, 50).write_text("easy jobs")
    model_path(tmp_path, 100).write_text("hard jobs")
    assert keep_best(tmp_path, score(0.9, 1.0, 50, "easy"))
    assert keep_best(tmp_path, score(0.2, 1.0, 100, "hard"))
    assert (tmp_path / BEST_FILE).read_text() == "hard jobs"
    assert "of iteration 50, was evaluated with other jobs; it is replaced" in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"success_rate": 1.0}'])
def test_a_damaged_score_is_as_good_as_none(tmp_path, caplog, content):
    (tmp_path / "model_best.json").write_text(content)
    assert best_score(tmp_path) is None
    assert "model_best.json is damaged" in caplog.text
