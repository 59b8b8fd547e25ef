import numpy as np
import pytest
import torch

from isaaclab_arena.sim.math import (
    apply_jacobian,
    damped_least_squares,
    step_within_limits,
    sum_in_order,
)


def random_jacobians(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 6, 7)))


def test_the_solver_agrees_with_lapack():
    jacobian, twist = random_jacobians(10).numpy(), np.random.default_rng(1).normal(size=(10, 6))
    step = damped_least_squares(torch.from_numpy(jacobian), torch.from_numpy(twist), damping=0.1)
    turned = jacobian.transpose(0, 2, 1)
    expected = turned @ np.linalg.solve(jacobian @ turned + 0.01 * np.eye(6), twist[..., None])
    np.testing.assert_allclose(step.numpy(), expected[..., 0], rtol=1e-9)


def test_a_step_with_little_damping_causes_the_wanted_twist():
    jacobian = random_jacobians(10)
    twist = torch.from_numpy(np.random.default_rng(2).normal(size=(10, 6)))
    step = damped_least_squares(jacobian, twist, damping=1e-6)
    torch.testing.assert_close(apply_jacobian(jacobian, step), twist)


def test_damping_keeps_steps_small_at_a_singular_pose():
    jacobian = random_jacobians(4)
    jacobian[:, 5] = jacobian[:, 4]
    step = damped_least_squares(jacobian, torch.tensor([[0.0, 0, 0, 0, 1.0, -1.0]]).double().expand(4, 6), damping=0.1)
    assert bool((step.abs() < 1.0).all())


def test_a_batch_entry_has_the_same_bits_in_every_batch():
    jacobian = random_jacobians(33)
    twist = torch.from_numpy(np.random.default_rng(3).normal(size=(33, 6)))
    together = damped_least_squares(jacobian, twist, damping=0.05)
    for entry in range(33):
        alone = damped_least_squares(jacobian[entry : entry + 1], twist[entry : entry + 1], damping=0.05)
        assert torch.equal(alone[0], together[entry])


def test_sums_run_from_first_to_last():
    terms = torch.tensor([1e20, 1.0, -1e20, 1.0])
    assert sum_in_order(terms).item() == 1.0


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
    even = damped_least_squares(jacobian, twist, 1e-3)
    position_first = damped_least_squares(jacobian, twist, 1e-3, rotation_weight=0.01)
    assert even[0, 0] < 0
    assert position_first[0, 0] == pytest.approx(0.1, rel=1e-2)
