"""Rotations and kinematics."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from isaaclab_arena.sim import math as rotation
from isaaclab_arena.sim.math import apply_jacobian, damped_least_squares, step_within_limits, sum_in_order


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
    for same in (target, -target):
        error = rotation.rotation_error(same, current).numpy()
        np.testing.assert_allclose(error, expected / angle * 2 * np.sin(angle / 2), atol=1e-12)


def test_clipping_keeps_direction_and_leaves_short_vectors_alone():
    vectors = torch.tensor([[3.0, 0.0, 4.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.0, 0.8], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(rotation.clip_length(vectors, 1.0), expected)
    assert sum_in_order(torch.tensor([1e20, 1.0, -1e20, 1.0])).item() == 1.0


def test_the_solver_agrees_with_lapack_with_the_same_bits_in_every_batch():
    generator = np.random.default_rng(0)
    jacobian, twist = generator.normal(size=(33, 6, 7)), generator.normal(size=(33, 6))
    step = damped_least_squares(torch.from_numpy(jacobian), torch.from_numpy(twist), damping=0.1)
    turned = jacobian.transpose(0, 2, 1)
    expected = turned @ np.linalg.solve(jacobian @ turned + 0.01 * np.eye(6), twist[..., None])
    np.testing.assert_allclose(step.numpy(), expected[..., 0], rtol=1e-9)
    for entry in range(33):
        own = (torch.from_numpy(each[entry : entry + 1]) for each in (jacobian, twist))
        assert torch.equal(damped_least_squares(*own, damping=0.1)[0], step[entry])


def test_a_joint_that_stops_at_its_limit_leaves_the_work_to_the_others():
    # Three parallel joints of a planar arm; the first may not move, the others make the whole translation.
    jacobian = torch.zeros(1, 6, 3, dtype=torch.float64)
    jacobian[0, 0] = torch.tensor([0.4, 0.3, 0.1])
    jacobian[0, 1] = torch.tensor([0.1, 0.3, 0.4])
    twist = torch.tensor([[0.01, 0.02, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    low = torch.tensor([[0.0, -1.0, -1.0]], dtype=torch.float64)
    high = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64)
    step = step_within_limits(jacobian, twist, 1e-4, rotation_weight=0.05, low=low, high=high)
    assert step[0, 0] == 0.0
    torch.testing.assert_close(apply_jacobian(jacobian, step), twist, atol=1e-6, rtol=0)


def test_a_small_rotation_weight_lets_the_position_win():
    jacobian = torch.zeros(1, 6, 1, dtype=torch.float64)
    jacobian[0, 0], jacobian[0, 5] = 0.5, 1.0
    twist = torch.tensor([[0.05, 0.0, 0.0, 0.0, 0.0, -0.1]], dtype=torch.float64)
    assert damped_least_squares(jacobian, twist, 1e-3)[0, 0] < 0
    position_first = damped_least_squares(jacobian, twist, 1e-3, rotation_weight=0.01)
    assert position_first[0, 0] == pytest.approx(0.1, rel=1e-2)
