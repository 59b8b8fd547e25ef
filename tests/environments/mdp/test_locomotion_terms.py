import math

import pytest
import torch

from isaaclab_arena.environments.mdp import terms


def test_a_total_is_the_same_in_every_batch():
    values = torch.rand(1000, 12, generator=torch.Generator().manual_seed(0))
    whole = terms.total(values)
    assert torch.equal(whole[17:18], terms.total(values[17:18]))
    torch.testing.assert_close(whole, values.sum(dim=1))
    torch.testing.assert_close(terms.total_square(values), (values**2).sum(dim=1))


def test_tracking_is_as_wide_as_a_bell_and_has_a_longer_tail():
    squared = torch.tensor([0.0, 0.01, 0.25, 4.0])
    tracked = terms.tracking(squared, width=0.5)
    assert tracked[0] == 1
    assert tracked[1].item() == pytest.approx(math.exp(-0.04), abs=1e-3)
    assert tracked[2].item() == pytest.approx(0.41, abs=0.01)
    assert tracked[3] > math.exp(-16)


def test_relative_tracking_makes_every_bit_of_the_way_worth_the_same():
    tracked = terms.relative_tracking(torch.tensor([0.0, 0.35, 0.7, 2.0]), torch.tensor([0.5] * 4), slack=0.2)
    assert tracked.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-6)


def test_a_low_pass_follows_a_step_within_its_time_constant():
    value = torch.zeros(1, 1)
    seen = []
    for _ in range(100):
        value = terms.low_passed(value, torch.ones(1, 1), dt=0.02, time_constant=0.25)
        seen.append(value.item())
    assert seen[12] == pytest.approx(1 - math.exp(-13 * 0.02 / 0.25), abs=0.02)
    assert seen[-1] > 0.99


def test_feet_at_their_heights_are_worth_most():
    wanted = torch.tensor([[0.07, 0.0], [0.07, 0.0]])
    kept = terms.clearance_tracking(torch.tensor([[0.07, 0.0], [0.0, 0.0]]), wanted, width=0.04)
    assert kept[0] == 1
    assert 0.5 < kept[1] < 0.7


def test_only_feet_that_touch_slip():
    velocity = torch.tensor([[[0.3, 0.4], [1.0, 0.0]]])
    assert terms.slip(velocity, torch.tensor([[True, False]])).item() == pytest.approx(0.25)
