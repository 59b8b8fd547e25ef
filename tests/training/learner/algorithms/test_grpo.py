import pytest
import torch

from isaaclab_arena.training.algorithms import group_advantages, returns_of_first_episode


def test_rewards_after_the_first_end_count_for_nothing():
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    dones = torch.tensor([[False, False], [True, False], [False, False]])
    returns, counts = returns_of_first_episode(rewards, dones, gamma=0.5)
    assert returns.tolist() == [[2.0, 3.0], [2.0, 4.0], [0.0, 4.0]]
    assert counts.tolist() == [[True, True], [True, True], [False, True]]


def test_env_slots_are_compared_with_those_that_began_alike():
    returns = torch.tensor([[1.0, 3.0, 10.0, 10.0]])
    advantages = group_advantages(returns, torch.ones(1, 4, dtype=torch.bool), group_size=2)
    assert advantages[0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0, 0.0])


def test_an_env_slot_that_is_alone_has_nothing_to_be_compared_with():
    counts = torch.tensor([[True, False], [False, False]])
    advantages = group_advantages(torch.tensor([[5.0, 0.0], [0.0, 0.0]]), counts, group_size=2)
    assert advantages.eq(0).all()
