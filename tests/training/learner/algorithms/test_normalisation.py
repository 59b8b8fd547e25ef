import pytest
import torch
from rsl_rl.modules import EmpiricalNormalization

from isaaclab_arena.training.algorithms import RanksNormalization, message_of, moments_of, normalised_over_ranks


def test_advantages_have_mean_0_and_the_unbiased_deviation_1():
    """The deviation of 1, 2, 3 and 6 from their mean of 3 is the root of 14 / 3."""
    deviation = (14 / 3) ** 0.5
    expected = [-2 / deviation, -1 / deviation, 0.0, 3 / deviation]
    assert normalised_over_ranks(torch.tensor([1.0, 2.0, 3.0, 6.0])).tolist() == pytest.approx(expected)


def test_equal_advantages_are_nothing_and_no_nan():
    assert normalised_over_ranks(torch.full((2, 3), 7.0)).tolist() == [[0.0] * 3] * 2
    assert normalised_over_ranks(torch.tensor([5.0])).tolist() == [0.0]


def test_what_ranks_tell_of_their_samples_gives_the_moments_of_all_samples():
    """Ranks of unlike size and unlike means: 1, 2 and 3, and 11."""
    told = [message_of(torch.tensor([[1.0], [2.0], [3.0]])), message_of(torch.tensor([[11.0]]))]
    count, mean, squares = moments_of(torch.stack(told))
    assert count.item() == 4
    assert mean.tolist() == [17 / 4]
    assert squares.tolist() == pytest.approx([1 + 4 + 9 + 121 - 17**2 / 4])


def test_observations_are_normalised_as_rsl_rl_does():
    generator = torch.Generator().manual_seed(2)
    ours, theirs = RanksNormalization(3), EmpiricalNormalization(3)
    for number in (5, 8):
        samples = 4 * torch.randn(number, 3, generator=generator) + 2
        ours.update(samples)
        theirs.update(samples)
    assert ours.state_dict()["count"] == theirs.state_dict()["count"] == 13
    shown = torch.ones(1, 3)
    torch.testing.assert_close(ours(shown), theirs(shown))


def test_a_normaliser_that_has_seen_enough_learns_no_more():
    normaliser = RanksNormalization(1, until=2)
    normaliser.update(torch.tensor([[1.0], [3.0]]))
    normaliser.update(torch.tensor([[100.0]]))
    assert normaliser.mean.tolist() == [2.0]
