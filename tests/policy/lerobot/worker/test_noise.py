import pytest
import torch

from isaaclab_arena.policy.lerobot_worker import NoiseOfEntries


def drawn(*seeds: int) -> torch.Tensor:
    size = len(seeds)
    with NoiseOfEntries(seeds):
        first = torch.randn((size, 4))
        parts = [
            first,
            torch.randn(size, 4, dtype=torch.float64),
            torch.randn(size=(size, 4), device="cpu"),
            torch.randn_like(first),
            torch.rand(size, 4),
            torch.rand_like(first),
            torch.normal(0.0, 2.0, (size, 4)),
            torch.normal(mean=1.0, std=0.1, size=(size, 4)),
            torch.normal(first, 1.0),
        ]
        assert parts[1].dtype == torch.float64
    return torch.cat(parts, dim=1)


def test_noise_follows_from_the_seed_of_an_entry_alone():
    alone = torch.cat([drawn(seed) for seed in (3, 1, 2)])
    assert torch.equal(drawn(3, 1, 2), alone)
    assert torch.equal(drawn(2, 3, 1), alone[[2, 0, 1]])
    assert len(set(alone[0].tolist())) == alone.shape[1]


def test_the_process_wide_generator_is_left_alone():
    state = torch.get_rng_state()
    drawn(1, 2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(3, 2),
        lambda: torch.randn(()),
        lambda: torch.randint(0, 4, (2, 3)),
        lambda: torch.zeros(2, 3).normal_(),
        lambda: torch.multinomial(torch.ones(2, 3), 1),
    ],
)
def test_what_cannot_be_told_by_entries_is_refused(draw):
    with pytest.raises(RuntimeError, match="the policy draws"), NoiseOfEntries([1, 2]):
        draw()
