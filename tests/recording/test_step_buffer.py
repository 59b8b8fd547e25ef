import numpy as np
import torch

from isaaclab_arena.recording.step_buffer import StepBuffer, flatten


def arrays(step: int, num_envs: int = 3) -> dict[str, torch.Tensor]:
    rows = torch.arange(num_envs)
    return {
        "small": (rows * 100 + step).float()[:, None].repeat(1, 2),
        "double": (rows * 100 + step).double()[:, None],
        "scalar": (rows * 100 + step).float(),
        "image": (rows + step).to(torch.uint8)[:, None, None, None].repeat(1, 2, 2, 3),
    }


def test_each_row_gets_the_steps_in_which_it_ran():
    buffer = StepBuffer(3, 10)
    buffer.start([0, 1, 2])
    buffer.append(torch.tensor([True, True, False]), arrays(1))
    buffer.append(torch.tensor([True, False, True]), arrays(2))
    assert {name: array.shape for name, array in buffer.take(0).items()} == {
        "small": (2, 2),
        "double": (2, 1),
        "scalar": (2,),
        "image": (2, 2, 2, 3),
    }
    np.testing.assert_array_equal(buffer.take(0)["scalar"], [1, 2])
    np.testing.assert_array_equal(buffer.take(1)["scalar"], [101])
    np.testing.assert_array_equal(buffer.take(2)["image"][:, 0, 0, 0], [4])
    assert buffer.take(0)["double"].dtype == np.float64
    assert buffer.take(0)["image"].dtype == np.uint8


def test_a_row_that_starts_again_has_forgotten_its_steps():
    buffer = StepBuffer(3, 10)
    for step in range(3):
        buffer.append(torch.tensor([True, True, True]), arrays(step))
    buffer.start([1])
    buffer.append(torch.tensor([True, True, True]), arrays(9))
    np.testing.assert_array_equal(buffer.take(1)["scalar"], [109])
    np.testing.assert_array_equal(buffer.take(0)["scalar"], [0, 1, 2, 9])


def test_what_was_taken_does_not_change_afterwards():
    buffer = StepBuffer(3, 10)
    buffer.append(torch.tensor([True, True, True]), arrays(1))
    taken = buffer.take(0)
    buffer.start([0])
    buffer.append(torch.tensor([True, True, True]), arrays(7))
    assert taken["scalar"].tolist() == [1]


def test_an_episode_longer_than_expected_is_kept_whole():
    buffer = StepBuffer(3, 2)
    for step in range(9):
        buffer.append(torch.tensor([False, True, False]), arrays(step))
    assert buffer.take(1)["scalar"].tolist() == [100 + step for step in range(9)]


def test_nested_dicts_are_flattened_to_paths():
    tree = {"rigid_object": {"cube": {"root_pose": torch.zeros(1)}}, "a": torch.ones(1)}
    assert [path for path, _ in flatten(tree, "states")] == ["states/rigid_object/cube/root_pose", "states/a"]
