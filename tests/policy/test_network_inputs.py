import torch

from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.rsl_rl import network_inputs
from tests.pretend_gpu import GPU


def test_a_group_without_terms_stands_beside_the_others_on_a_gpu_too(gpu):
    inputs = network_inputs({"policy": {"place": ArraySpec(shape=(2,))}, "goal": {}}, ["policy", "goal"], {})
    seen = inputs.flat({"policy": {"place": torch.ones(3, 2, device=GPU)}, "goal": {}}, 3, GPU)
    assert seen.device == GPU
    assert seen.shape == (3, inputs.size)


def test_a_group_that_the_network_was_shown_twice_counts_twice():
    place = ArraySpec(shape=(2,))
    inputs = network_inputs({"policy": {"place": place}, "goal": {"at": place}}, ["policy", "goal", "policy"], {})
    observation = {"policy": {"place": torch.ones(1, 2)}, "goal": {"at": torch.zeros(1, 2)}}
    seen = inputs.flat(observation, 1, torch.device("cpu"))
    assert seen.tolist() == [[1, 1, 0, 0, 1, 1]]
    assert inputs.size == 6
