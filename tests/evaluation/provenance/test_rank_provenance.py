import torch

from isaaclab_arena.evaluation.job import provenance_on


def test_here_and_now_there_are_versions_a_processor_and_a_device():
    here = provenance_on(torch.device("cpu"))
    assert {"python", "torch", "mujoco", "numpy", "cpu", "platform"} <= here.facts.keys()
    assert here.facts["device"] == "cpu"
