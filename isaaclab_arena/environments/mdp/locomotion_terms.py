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
    """Return 1 without an error, falling like ``exp(-squared_error / width**2)``, with a longer tail.

    It is ``(1 + x / 4) ** -4``, whose slope at 0 and whose width are those of ``exp(-x)``, but which needs no
    transcendental function.

    Args:
        squared_error: Shape: (num_envs,), not negative.
        width: Error at which the term is 0.41, in the unit whose square the error has.
    """
    base = 1 + squared_error / (4 * width * width)
    square = base * base
    return 1 / (square * square)


def low_passed(so_far: _Number, value: _Number, dt: float, time_constant: float) -> _Number:
    """Return a value filtered by a first-order low pass: a tensor of any shape, or one number.

    Args:
        so_far: The filtered value one step ago.
        value: The value now, of the same shape.
        dt: Time between the two [s].
        time_constant: Of the filter [s], several times ``dt``.
    """
    return so_far + (dt / time_constant) * (value - so_far)


def relative_tracking(error: torch.Tensor, asked: torch.Tensor, slack: float) -> torch.Tensor:
    """Return 1 without an error, falling to 0 in a straight line as the error reaches what is asked for plus a slack.

    Doing nothing is worth next to nothing where much is asked for, and every bit of the way is worth the same.

    Args:
        error: Shape: (num_envs,), not negative.
        asked: Size of what is asked for, in the same unit. Shape: (num_envs,), not negative.
        slack: Error at which the term is 0 where nothing is asked for, in the same unit.
    """
    return (1 - error / (asked + slack)).clamp(min=0.0)


def clearance_tracking(clearance: torch.Tensor, wanted: torch.Tensor, width: float) -> torch.Tensor:
    """Return how well feet keep to the heights of a gait, 1 if all of them do.

    Args:
        clearance: How high each foot is above the floor [m]. Shape: (num_envs, num_feet).
        wanted: How high it is to be [m]. Shape: (num_envs, num_feet).
        width: See `tracking` [m].
    """
    difference = clearance - wanted
    return total(tracking(difference * difference, width)) / clearance.shape[-1]


def slip(feet_velocity: torch.Tensor, touching: torch.Tensor) -> torch.Tensor:
    """Return the squared speed of feet over the floor that they touch [m²/s²]. Shape: (num_envs,).

    Args:
        feet_velocity: Horizontal. Shape: (num_envs, num_feet, 2).
        touching: Shape: (num_envs, num_feet), bool.
    """
    return total(torch.where(touching, total_square(feet_velocity), 0.0))
