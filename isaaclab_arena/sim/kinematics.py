"""Damped-least-squares inverse kinematics for a batch, the same bits for every batch size.

Legend: n worlds, k joints, 6 task directions (vx, vy, vz, wx, wy, wz).
"""

import torch


def damped_least_squares(jacobian: torch.Tensor, twist: torch.Tensor, damping: float) -> torch.Tensor:
    """Return the joint step ``J^T (J J^T + damping^2 I)^-1 twist``.

    Args:
        jacobian: Shape: (n, 6, k).
        twist: Wanted step of the end effector in the world frame [m, rad]. Shape: (n, 6).
        damping: Keeps steps small near singular poses; about 0.05 for a robot arm.

    Returns:
        Shape: (n, k).
    """
    gram = sum_in_order(jacobian[:, :, None, :] * jacobian[:, None, :, :])
    identity = torch.eye(6, dtype=jacobian.dtype, device=jacobian.device)
    weights = solve_positive_definite(gram + damping * damping * identity, twist)
    return sum_in_order((jacobian * weights[:, :, None]).transpose(1, 2))


def apply_jacobian(jacobian: torch.Tensor, joint_step: torch.Tensor) -> torch.Tensor:
    """Return the twist that a joint step causes. Shapes: (n, 6, k), (n, k) -> (n, 6)."""
    return sum_in_order(jacobian * joint_step[:, None, :])


def solve_positive_definite(matrix: torch.Tensor, right_side: torch.Tensor) -> torch.Tensor:
    """Solve symmetric positive definite systems by elimination without pivoting.

    Shapes: (n, m, m), (n, m) -> (n, m).
    """
    rows = torch.cat((matrix, right_side[:, :, None]), dim=-1)
    for pivot in range(matrix.shape[1]):
        scaled = rows[:, pivot, :] / rows[:, pivot, pivot, None]
        rows = rows - rows[:, :, pivot, None] * scaled[:, None, :]
        rows[:, pivot, :] = scaled
    return rows[:, :, -1]


def sum_in_order(terms: torch.Tensor) -> torch.Tensor:
    """Sum the last dimension from first to last, where ``torch.sum`` may choose another order for another batch.

    Shape: (..., k) -> (...).
    """
    total = terms[..., 0]
    for index in range(1, terms.shape[-1]):
        total = total + terms[..., index]
    return total
