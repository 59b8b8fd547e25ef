"""Quaternions (w x y z) and short vectors, in elementwise arithmetic only.

No reduction, matrix product or transcendental function appears here: their rounding may depend on the size and
layout of the batch, and an entry's numbers must not depend on its neighbours.
"""

from collections.abc import Sequence

import torch


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the dot product of 3-vectors, summed left to right. Shapes: (..., 3), (..., 3) -> (...)."""
    x, y, z = (a * b).unbind(-1)
    return x + y + z


def norm(vector: torch.Tensor) -> torch.Tensor:
    """Return the length of 3-vectors. Shape: (..., 3) -> (...)."""
    return torch.sqrt(dot(vector, vector))


def cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the cross product of 3-vectors. Shapes: (..., 3), (..., 3) -> (..., 3)."""
    return _cross(_turned(a), b)


def conjugate(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the inverse of unit quaternions. Shape: (..., 4) -> (..., 4)."""
    return torch.cat((quaternion[..., :1], -quaternion[..., 1:]), dim=-1)


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


def multiply_numbers(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    """Return the rotation ``a`` after ``b``, as plain numbers. Shapes: (4,), (4,) -> (4,)."""
    product = multiply(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    return tuple(float(part) for part in product)


def rotate(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Turn vectors by unit quaternions. Shapes: (..., 4), (..., 3) -> (..., 3)."""
    return _rotated(quaternion[..., :1], quaternion[..., 1:], vector)


def rotate_inverse(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Turn vectors back by unit quaternions: world to body frame. Shapes: (..., 4), (..., 3) -> (..., 3)."""
    return _rotated(quaternion[..., :1], -quaternion[..., 1:], vector)


def rotation_error(target: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """Return a rotation vector in the world frame that leads from ``current`` to ``target``, the short way.

    Its length is twice the sine of half the angle, which is the angle itself [rad] to 1 % up to 28 degrees and grows
    with the angle up to 180 degrees.

    Args:
        target: Shape: (..., 4).
        current: Shape: (..., 4).

    Returns:
        Shape: (..., 3).
    """
    difference = multiply(target, conjugate(current))
    sign = torch.where(difference[..., :1] < 0, -1.0, 1.0)
    return 2 * sign * difference[..., 1:]


def clip_length(vector: torch.Tensor, longest: float) -> torch.Tensor:
    """Shorten 3-vectors to at most a length, keeping their direction. Shape: (..., 3) -> (..., 3)."""
    length = norm(vector).clamp(min=1e-12)
    return vector * (longest / length).clamp(max=1.0).unsqueeze(-1)


def _rotated(real: torch.Tensor, axis: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Turn vectors by unit quaternions in two parts. Shapes: (..., 1), (..., 3), (..., 3) -> (..., 3)."""
    turned = _turned(axis)
    twice = 2 * _cross(turned, vector)
    return vector + real * twice + _cross(turned, twice)


def _turned(vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors as y z x and as z x y, which a GPU is told in one operation. Shape: (..., 3)."""
    doubled = torch.cat((vector, vector), dim=-1)
    return doubled[..., 1:4], doubled[..., 2:5]


def _cross(a: tuple[torch.Tensor, torch.Tensor], b: torch.Tensor) -> torch.Tensor:
    """Return the cross product of vectors, those before it `_turned`."""
    (a_yzx, a_zxy), (b_yzx, b_zxy) = a, _turned(b)
    return a_yzx * b_zxy - a_zxy * b_yzx
