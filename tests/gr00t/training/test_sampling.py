import numpy as np
import pytest
import torch

from isaaclab_arena_gr00t.training.trainer import AUGMENTATION, NOISE, batch_numbers, step_generator


def numbers(step: int, *, rank: int = 0, world_size: int = 1, batch_size: int = 4, seed: int = 0) -> np.ndarray:
    return batch_numbers(step, rank=rank, world_size=world_size, batch_size=batch_size, num_samples=10, seed=seed)


def test_every_sample_is_seen_once_in_each_pass():
    stream = np.concatenate([numbers(step) for step in range(5)])
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()


def test_two_ranks_see_together_what_one_process_with_twice_the_batch_sees():
    for step in range(7):
        ranks = [numbers(step, rank=rank, world_size=2) for rank in range(2)]
        np.testing.assert_array_equal(np.concatenate(ranks), numbers(step, batch_size=8))


def test_another_seed_gives_another_order():
    assert numbers(0, seed=1).tolist() != numbers(0).tolist()


@pytest.mark.parametrize("purpose", [NOISE, AUGMENTATION])
def test_every_rank_and_step_has_a_stream_of_its_own(purpose):
    drawn = {
        float(torch.rand(1, generator=step_generator(purpose, step, rank=rank, seed=seed)))
        for step in range(3)
        for rank in range(3)
        for seed in range(2)
    }
    assert len(drawn) == 18
    assert float(torch.rand(1, generator=step_generator(purpose, 2, rank=1, seed=0))) in drawn
