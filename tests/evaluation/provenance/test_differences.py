import torch

from isaaclab_arena.evaluation.provenance.differences import named_differences, surroundings


def test_what_was_other_is_named_and_what_does_not_matter_is_not():
    recorded = {"mujoco": "3.3.1", "cpu": "A", "config_hash": "1", "policy_type": "scripted", "gone": "2", "same": "x"}
    now = {"mujoco": "4.0.0", "cpu": "A", "config_hash": "2", "policy_type": "replay", "same": "x", "new": "y"}
    assert named_differences(recorded, now) == ("gone was 2, is now absent", "mujoco was 3.3.1, is now 4.0.0")


def test_here_and_now_there_are_versions_a_processor_and_a_device():
    here = surroundings(torch.device("cpu"))
    assert {"python", "torch", "mujoco", "numpy", "cpu", "platform"} <= here.keys()
    assert here["device"] == "cpu"
    assert named_differences(here, here) == ()
