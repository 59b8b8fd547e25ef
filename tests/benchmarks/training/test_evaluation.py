import pytest

from benchmarks.training.evaluation import train


@pytest.mark.slow
def test_evaluation_takes_a_share_of_a_training_run():
    words = ("agent.max_iterations=2", "evaluation.num_episodes=4", "evaluation.num_envs=2", "num_envs=4")
    one = train("cartpole", *words)
    assert 0.0 < one.share < 100.0
    assert len(one.evaluations_s) == 1
    assert one.first_s < one.wall_s
