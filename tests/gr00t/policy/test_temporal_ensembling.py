import numpy as np
import pytest
import torch

from isaaclab_arena_gr00t.policy.closedloop import EnsembledChunks

LENGTH = 4


def fresh(coeff: float, num_envs: int = 2) -> EnsembledChunks:
    device = torch.device("cpu")
    return EnsembledChunks.empty(num_envs, coeff=coeff, chunk_length=LENGTH, action_dim=3, device=device)


def as_in_act(made: list[np.ndarray], coeff: float) -> np.ndarray:
    """Return the action of the present step as the paper has it, from the chunks of one env slot, oldest first."""
    about_now = [chunk[age] for age, chunk in enumerate(reversed(made[-LENGTH:]))][::-1]
    weights = np.exp(-coeff * np.arange(len(about_now)))
    return (np.array(about_now) * (weights / weights.sum())[:, None]).sum(axis=0)


@pytest.mark.parametrize("coeff", [0.0, 0.01, 3.0])
def test_an_action_is_the_weighted_mean_of_all_that_was_predicted_for_its_step(coeff):
    generator = np.random.default_rng(0)
    source, made = fresh(coeff).restarted(torch.tensor([0, 1])), ([], [])
    for step in range(9):
        if step == 5:  # the second env slot begins another episode
            source, made = source.restarted(torch.tensor([1])), (made[0], [])
        assert source.needs_chunk().all()
        chunks = generator.normal(size=(2, LENGTH, 3)).astype(np.float32)
        source = source.refilled(torch.tensor([0, 1]), torch.from_numpy(chunks))
        for env_id in range(2):
            made[env_id].append(chunks[env_id])
        action, source = source.popped()
        expected = np.stack([as_in_act(made[env_id], coeff) for env_id in range(2)])
        np.testing.assert_allclose(action.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_an_env_slot_held_before_its_episode_does_not_come_through():
    source = fresh(0.01, 1).restarted(torch.tensor([0]))
    source = source.refilled(torch.tensor([0]), torch.full((1, LENGTH, 3), torch.nan)).popped()[1]
    source = source.restarted(torch.tensor([0])).refilled(torch.tensor([0]), torch.ones(1, LENGTH, 3))
    assert torch.equal(source.popped()[0], torch.ones(1, 3))


def test_an_env_slot_at_rest_is_not_asked_for():
    source = fresh(0.01).restarted(torch.tensor([0, 1])).rested(torch.tensor([0]))
    assert source.needs_chunk().tolist() == [False, True]
    assert not source.popped()[0][0].any()
