import pytest
import torch

from isaaclab_arena.training.learner.algorithms.ppo import falling_learning_rate, mean_losses, normalised_over_ranks


def test_advantages_have_mean_0_and_the_unbiased_deviation_1():
    """The deviation of 1, 2, 3 and 6 from their mean of 3 is the root of 14 / 3."""
    deviation = (14 / 3) ** 0.5
    expected = [-2 / deviation, -1 / deviation, 0.0, 3 / deviation]
    assert normalised_over_ranks(torch.tensor([1.0, 2.0, 3.0, 6.0])).tolist() == pytest.approx(expected)


def test_equal_advantages_are_nothing_and_no_nan():
    assert normalised_over_ranks(torch.full((2, 3), 7.0)).tolist() == [[0.0] * 3] * 2
    assert normalised_over_ranks(torch.tensor([5.0])).tolist() == [0.0]


@pytest.mark.parametrize(("iteration", "rate"), [(0, 0.1), (1, 0.075), (3, 0.025), (4, 0.0), (9, 0.0)])
def test_a_falling_learning_rate_falls_in_equal_steps(iteration, rate):
    assert falling_learning_rate(0.1, iteration, 4) == pytest.approx(rate)


def test_one_ranks_losses_are_the_mean_of_all():
    assert mean_losses({"surrogate": 0.5, "entropy": 2.0}, "cpu") == {"surrogate": 0.5, "entropy": 2.0}
