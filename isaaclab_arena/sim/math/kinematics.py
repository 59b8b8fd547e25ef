"""Damped-least-squares inverse kinematics for a batch, the same bits for every batch size.

Legend: n worlds, k joints, 6 task directions (vx, vy, vz, wx, wy, wz).
"""

import torch

_LIMIT_PASSES = 2


def damped_least_squares(
    jacobian: torch.Tensor, twist: torch.Tensor, damping: float, *, rotation_weight: float = 1.0
) -> torch.Tensor:
    """Return the joint step ``J^T (J J^T + damping^2 I)^-1 twist``.

    Args:
        jacobian: Shape: (n, 6, k).
        twist: Wanted step of the end effector in the world frame [m, rad]. Shape: (n, 6).
        damping: Keeps steps small near singular poses; about 0.05 for a robot arm.
        rotation_weight: Factor on the rotation's part of the twist, below 1 where the position matters more.

    Returns:
        Shape: (n, k).
    """
    if rotation_weight != 1.0:
        weights = torch.tensor((1.0,) * 3 + (rotation_weight,) * 3, dtype=twist.dtype, device=twist.device)
        jacobian, twist = jacobian * weights[:, None], twist * weights
    gram = sum_in_order(jacobian[:, :, None, :] * jacobian[:, None, :, :])
    identity = torch.eye(6, dtype=jacobian.dtype, device=jacobian.device)
    multipliers = solve_positive_definite(gram + damping * damping * identity, twist)
    return sum_in_order((jacobian * multipliers[:, :, None]).transpose(1, 2))


def step_within_limits(
    jacobian: torch.Tensor,
    twist: torch.Tensor,
    damping: float,
    *,
    rotation_weight: float,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """Return the damped-least-squares step in which joints stop at their limits and the others make up for it.

    An arm of few joints needs it: clipping the step afterwards would leave its position wrong.

    Args:
        jacobian: Shape: (n, 6, k).
        twist: Wanted step of the end effector. Shape: (n, 6).
        damping: See `damped_least_squares`.
        rotation_weight: See `damped_least_squares`.
        low: Lowest step, not above 0. Shape: (n, k).
        high: Highest step, not below 0. Shape: (n, k).

    Returns:
        Shape: (n, k).
    """
    step = damped_least_squares(jacobian, twist, damping, rotation_weight=rotation_weight)
    stopped = torch.zeros_like(step, dtype=torch.bool)
    for _ in range(_LIMIT_PASSES):
        stopped = stopped | (step < low) | (step > high)
        held = torch.where(stopped, torch.minimum(torch.maximum(step, low), high), 0.0)
        free = torch.where(stopped[:, None, :], 0.0, jacobian)
        rest = twist - apply_jacobian(jacobian, held)
        step = held + damped_least_squares(free, rest, damping, rotation_weight=rotation_weight)
    return torch.minimum(torch.maximum(step, low), high)


def apply_jacobian(jacobian: torch.Tensor, joint_step: torch.Tensor) -> torch.Tensor:
    """Return the twist that a joint step causes. Shapes: (n, 6, k), (n, k) -> (n, 6)."""
    return sum_in_order(jacobian * joint_step[:, None, :])


def solve_positive_definite(matrix: torch.Tensor, right_side: torch.Tensor) -> torch.Tensor:
    """Solve symmetric positive definite systems by elimination without pivoting.

    Shapes: (n, m, m), (n, m) -> (n, m).
    """
    augmented = torch.cat((matrix, right_side[:, :, None]), dim=-1)
    for pivot in range(matrix.shape[1]):
        scaled = augmented[:, pivot, :] / augmented[:, pivot, pivot, None]
        augmented = augmented - augmented[:, :, pivot, None] * scaled[:, None, :]
        augmented[:, pivot, :] = scaled
    return augmented[:, :, -1]


def sum_in_order(terms: torch.Tensor) -> torch.Tensor:
    """Sum the last dimension from first to last, where ``torch.sum`` may choose another order for another batch.

    Shape: (..., k) -> (...).
    """
    total = terms[..., 0]
    for index in range(1, terms.shape[-1]):
        total = total + terms[..., index]
    return total
