import numpy as np
import torch
from scipy.spatial.transform import Rotation

from isaaclab_arena.sim import math as rotation


def random_quaternions(count: int, seed: int = 0) -> tuple[torch.Tensor, Rotation]:
    turns = Rotation.from_quat(np.random.default_rng(seed).normal(size=(count, 4)))
    return torch.from_numpy(turns.as_quat(scalar_first=True)), turns


def test_products_and_turned_vectors_agree_with_scipy():
    first, first_turn = random_quaternions(20)
    second, second_turn = random_quaternions(20, seed=1)
    vector = np.random.default_rng(2).normal(size=(20, 3))
    product = Rotation.from_quat(rotation.multiply(first, second).numpy(), scalar_first=True)
    np.testing.assert_allclose(product.as_matrix(), (first_turn * second_turn).as_matrix(), atol=1e-12)
    turned = rotation.rotate(first, torch.from_numpy(vector))
    np.testing.assert_allclose(turned.numpy(), first_turn.apply(vector), atol=1e-12)
    back = rotation.rotate_inverse(first, turned)
    np.testing.assert_allclose(back.numpy(), vector, atol=1e-12)


def test_the_rotation_error_points_along_the_axis_with_twice_the_sine_of_half_the_angle():
    current, turn = random_quaternions(20)
    target, target_turn = random_quaternions(20, seed=1)
    expected = (target_turn * turn.inv()).as_rotvec()
    angle = np.linalg.norm(expected, axis=1, keepdims=True)
    error = rotation.rotation_error(target, current).numpy()
    np.testing.assert_allclose(error, expected / angle * 2 * np.sin(angle / 2), atol=1e-12)


def test_opposite_quaternions_are_the_same_orientation():
    current, _ = random_quaternions(5)
    torch.testing.assert_close(rotation.rotation_error(-current, current), torch.zeros(5, 3, dtype=torch.float64))


def test_clipping_keeps_direction_and_leaves_short_vectors_alone():
    vectors = torch.tensor([[3.0, 0.0, 4.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.0, 0.8], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(rotation.clip_length(vectors, 1.0), expected)


def test_lengths_are_euclidean():
    vector = torch.tensor([[2.0, 3.0, 6.0]])
    assert rotation.norm(vector).item() == 7.0
