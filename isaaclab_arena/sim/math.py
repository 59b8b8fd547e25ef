"""Rotations and inverse kinematics for batches, the same bits for every batch size."""

import torch

# Quaternions (w x y z) and short vectors, in elementwise arithmetic only.
#
# No reduction, matrix product or transcendental function appears here: their rounding may depend on the size and
# layout of the batch, and an entry's numbers must not depend on its neighbours.


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the dot product of 3-vectors, summed left to right. Shapes: (..., 3), (..., 3) -> (...)."""
    x, y, z = (a * b).unbind(-1)
    return x + y + z


def norm(vector: torch.Tensor) -> torch.Tensor:
    """Return the length of 3-vectors. Shape: (..., 3) -> (...)."""
    return torch.sqrt(dot(vector, vector))


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the rotation ``a`` after ``b``. Shapes: (..., 4), (..., 4) -> (..., 4)."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        dim=-1,
    )


def rotate(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors by unit quaternions. Shapes: (..., 4), (..., 3) -> (..., 3)."""
    return _rotated(quaternion[..., :1], quaternion[..., 1:], vector)


def rotate_inverse(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors back by unit quaternions: world to body frame. Shapes: (..., 4), (..., 3) -> (..., 3)."""
    return _rotated(quaternion[..., :1], -quaternion[..., 1:], vector)


def rotation_error(target: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """Return the short rotation vector, world frame, from ``current`` to ``target``. (..., 4), (..., 4) -> (..., 3)."""
    # The length is 2 sin(angle / 2): the angle [rad] to 1 % up to 28 degrees, and growing up to 180 degrees.
    difference = multiply(target, torch.cat((current[..., :1], -current[..., 1:]), dim=-1))
    sign = torch.where(difference[..., :1] < 0, -1.0, 1.0)
    return 2 * sign * difference[..., 1:]


def clip_length(vector: torch.Tensor, longest: torch.Tensor | float) -> torch.Tensor:
    """Shorten 3-vectors to at most a length, or one each (...), keeping their direction. Shape: (..., 3), kept."""
    length = norm(vector).clamp(min=1e-12)
    return vector * (longest / length).clamp(max=1.0).unsqueeze(-1)


def _rotated(real: torch.Tensor, axis: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors by unit quaternions in two parts. Shapes: (..., 1), (..., 3), (..., 3) -> (..., 3)."""
    # A cross product needs vectors as y z x and as z x y: parts of doubled ones, with one GPU operation for both.
    doubled = torch.cat((axis, axis), dim=-1)
    yzx, zxy = doubled[..., 1:4], doubled[..., 2:5]
    doubled = torch.cat((vector, vector), dim=-1)
    twice = 2 * (yzx * doubled[..., 2:5] - zxy * doubled[..., 1:4])
    doubled = torch.cat((twice, twice), dim=-1)
    return vector + real * twice + (yzx * doubled[..., 2:5] - zxy * doubled[..., 1:4])


# Damped-least-squares inverse kinematics for a batch, the same bits for every batch size.
#
# Legend: n worlds, k joints, 6 task directions (vx, vy, vz, wx, wy, wz).


def damped_least_squares(
    jacobian: torch.Tensor, twist: torch.Tensor, damping: float, *, rotation_weight: float = 1.0
) -> torch.Tensor:
    """Return the joint step ``J^T (J J^T + damping^2 I)^-1 twist``. Shapes: (n, 6, k), (n, 6) [m, rad] -> (n, k)."""
    # Damping keeps steps small near singular poses: about 0.05 for an arm. A weight below 1 favours the position.
    if rotation_weight != 1.0:
        weights = torch.tensor((1.0,) * 3 + (rotation_weight,) * 3, dtype=twist.dtype, device=twist.device)
        jacobian, twist = jacobian * weights[:, None], twist * weights
    gram = sum_in_order(jacobian[:, :, None, :] * jacobian[:, None, :, :])
    identity = torch.eye(6, dtype=jacobian.dtype, device=jacobian.device)
    # The system is symmetric and positive definite, so elimination needs no pivoting.
    augmented = torch.cat((gram + damping * damping * identity, twist[:, :, None]), dim=-1)
    for pivot in range(6):
        scaled = augmented[:, pivot, :] / augmented[:, pivot, pivot, None]
        augmented = augmented - augmented[:, :, pivot, None] * scaled[:, None, :]
        augmented[:, pivot, :] = scaled
    return sum_in_order((jacobian * augmented[:, :, -1][:, :, None]).transpose(1, 2))


def step_within_limits(
    jacobian: torch.Tensor,
    twist: torch.Tensor,
    damping: float,
    *,
    rotation_weight: float,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """Return the damped-least-squares step (n, k) with joints stopped at ``low`` and ``high``, others compensating."""
    # An arm of few joints needs it: clipping afterwards would leave its position wrong. low <= 0 <= high.
    step = damped_least_squares(jacobian, twist, damping, rotation_weight=rotation_weight)
    stopped = torch.zeros_like(step, dtype=torch.bool)
    for _ in range(2):
        stopped = stopped | (step < low) | (step > high)
        held = torch.where(stopped, torch.minimum(torch.maximum(step, low), high), 0.0)
        free = torch.where(stopped[:, None, :], 0.0, jacobian)
        rest = twist - apply_jacobian(jacobian, held)
        step = held + damped_least_squares(free, rest, damping, rotation_weight=rotation_weight)
    return torch.minimum(torch.maximum(step, low), high)


def apply_jacobian(jacobian: torch.Tensor, joint_step: torch.Tensor) -> torch.Tensor:
    """Return the twist that a joint step causes. Shapes: (n, 6, k), (n, k) -> (n, 6)."""
    return sum_in_order(jacobian * joint_step[:, None, :])


def sum_in_order(terms: torch.Tensor) -> torch.Tensor:
    """Sum the last dimension from first to last; ``torch.sum`` may reorder per batch. Shape: (..., k) -> (...)."""
    total = terms[..., 0]
    for index in range(1, terms.shape[-1]):
        total = total + terms[..., index]
    return total
