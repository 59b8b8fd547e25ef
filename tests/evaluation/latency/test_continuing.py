import math

import torch

from isaaclab_arena.evaluation.latency import continuation


def test_the_mask_is_that_of_the_paper():
    (weights,) = continuation(torch.zeros(1, 16, 1), torch.tensor([8]), committed=4).weights
    shares = [(8 - place) / (8 - 4 + 1) for place in range(4, 8)]
    expected = [1.0] * 4 + [share * (math.exp(share) - 1) / (math.e - 1) for share in shares] + [0.0] * 8
    assert torch.allclose(weights, torch.tensor(expected))


def test_chunks_go_on_from_what_is_left_of_the_plan_and_from_nothing_where_there_is_none():
    plans = torch.arange(8.0).reshape(2, 4, 1)
    going_on = continuation(plans, torch.tensor([1, 4]), committed=2)
    assert going_on.actions.flatten(1).tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]
    assert going_on.weights[0, :2].tolist() == [1, 1]
    assert 0 < going_on.weights[0, 2] < 1
    assert going_on.weights[0, 3] == 0
    assert not going_on.weights[1].any()
