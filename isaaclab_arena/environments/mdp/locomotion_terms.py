"""Reward terms of legged robots: pure functions of tensors, one number per env slot, elementwise arithmetic only."""

from typing import TypeVar

import torch

_Number = TypeVar("_Number", float, torch.Tensor)


def total(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last dimension, left to right in every batch. Shape: (num_envs, n) -> (num_envs,)."""
    first, *others = values.unbind(-1)
    for value in others:
        first = first + value
    return first


def total_square(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares over the last dimension. Shape: (num_envs, n) -> (num_envs,)."""
    return total(values * values)


def mean_square(values: torch.Tensor) -> torch.Tensor:
    """Return the mean of squares over the last dimension. Shape: (num_envs, n) -> (num_envs,)."""
    return total_square(values) / values.shape[-1]


def tracking(squared_error: torch.Tensor, width: float) -> torch.Tensor:
    """Return 1 for no error, with a tail like ``exp(-squared_error / width**2)`` but longer. Shape: (num_envs,)."""
    # (1 + x / 4) ** -4 has the slope at 0 and the width of exp(-x), without a transcendental function. It is 0.41 at
    # ``width``.
    base = 1 + squared_error / (4 * width * width)
    square = base * base
    return 1 / (square * square)


def low_passed(so_far: _Number, value: _Number, dt: float, time_constant: float) -> _Number:
    """Return one step of a first-order low pass; ``dt`` and ``time_constant`` (several times dt) [s]."""
    return so_far + (dt / time_constant) * (value - so_far)


def relative_tracking(error: torch.Tensor, asked: torch.Tensor, slack: float) -> torch.Tensor:
    """Return 1 for no error, falling linearly to 0 at an error of ``asked + slack``. Shape: (num_envs,)."""
    # A robot that does nothing earns next to nothing if much is asked, and each part of the way has the same worth.
    return (1 - error / (asked + slack)).clamp(min=0.0)


def clearance_tracking(clearance: torch.Tensor, wanted: torch.Tensor, width: float) -> torch.Tensor:
    """Return the mean `tracking` of the feet's heights (num_envs, num_feet) [m], 1 if all fit the gait."""
    difference = clearance - wanted
    return total(tracking(difference * difference, width)) / clearance.shape[-1]


def slip(feet_velocity: torch.Tensor, touching: torch.Tensor) -> torch.Tensor:
    """Return the squared horizontal speed of feet on the floor [m²/s²], from (num_envs, num_feet, 2). (num_envs,)."""
    return total(torch.where(touching, total_square(feet_velocity), 0.0))
