import pytest
import torch

from isaaclab_arena.sim.backend import StartState, model_names
from isaaclab_arena.sim.scene import compose_scene
from isaaclab_arena.sim.warp_backend import StartSender
from tests.sim.arm_and_cube import PARTS


def sent(parts, starts: list[StartState]) -> dict[str, torch.Tensor]:
    model = compose_scene("scenes/table.xml", parts)
    at_rest = {
        "time": torch.zeros(1),
        "qpos": torch.full((1, model.nq), 0.25),
        "qvel": torch.zeros(1, model.nv),
        "act": torch.zeros(1, model.na),
        "ctrl": torch.zeros(1, model.nu),
        "mocap_pos": torch.full((1, model.nmocap, 3), 0.75),
        "mocap_quat": torch.ones(1, model.nmocap, 4),
    }
    arrays = dict(StartSender(model_names(model), at_rest).send(starts))
    assert {name: values.shape[1:] for name, values in arrays.items()} == {
        name: values.shape[1:] for name, values in at_rest.items()
    }
    return arrays


def test_what_a_start_does_not_name_is_as_at_rest():
    starts = [
        StartState(joint_positions={"robot/panda_joint1": (0.5,)}),
        StartState(mocap_positions={"target/body": (1.0, 2.0, 3.0)}),
    ]
    arrays = sent(PARTS, starts)
    assert arrays["qpos"][:, :2].tolist() == [[0.5, 0.25], [0.25, 0.25]]
    assert arrays["mocap_pos"].tolist() == [[[0.75] * 3], [[1.0, 2.0, 3.0]]]
    assert arrays["mocap_quat"].tolist() == [[[1.0] * 4]] * 2
    assert arrays["time"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("num_starts", [0, 3])
def test_models_without_controls_or_mocap_bodies_start_too(num_starts):
    arrays = sent(PARTS[1:2], [StartState()] * num_starts)
    assert arrays["qpos"].shape[0] == num_starts
    assert arrays["mocap_pos"].shape == (num_starts, 0, 3)
