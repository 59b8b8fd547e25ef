"""Reward and success terms: pure functions of tensors, one number per env slot.

Only elementwise arithmetic without transcendental functions, so that an env slot's numbers are the same in every batch.
"""

import math
from functools import lru_cache
from typing import TypeVar

import torch

from isaaclab_arena.sim.math import norm, sum_in_order

_Number = TypeVar("_Number", float, torch.Tensor)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance between points [m]. Shapes: (num_envs, 3), (num_envs, 3) -> (num_envs,)."""
    return norm(a - b)


def horizontal_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance between points seen from above [m]. Shapes: (num_envs, 3), (num_envs, 3) -> (num_envs,)."""
    x, y, _ = (a - b).unbind(-1)
    return torch.sqrt(x * x + y * y)


def push_point(
    hand: torch.Tensor, position: torch.Tensor, goal: torch.Tensor, gap: tuple[float, float]
) -> torch.Tensor:
    """Return the hand positions from which to push things to their goals, level with the things: (num_envs, 3)."""
    # The points lie behind the thing, seen from the goal: on a short line for a hand that is behind, else at its far
    # end, so that there is room to come down. ``gap`` holds the distances of the line's ends from the thing's centre
    # [m].
    near, far = gap
    way = (goal - position)[:, :2] / horizontal_distance(goal, position)[:, None].clamp(min=1e-6)
    offset = (hand - position)[:, :2]
    back = -(offset[:, 0] * way[:, 0] + offset[:, 1] * way[:, 1])
    distance = torch.where(back > 0.7 * near, back.clamp(near, far), far)
    return torch.cat((position[:, :2] - way * distance[:, None], position[:, 2:]), dim=1)


def upright(orientation: torch.Tensor) -> torch.Tensor:
    """True where a body's z axis points up, within about 18 degrees. Shape: (num_envs, 4) -> (num_envs,), bool."""
    _, x, y, _ = orientation.unbind(-1)
    return 1 - 2 * (x * x + y * y) > 0.95


def tilt_from_down(orientation: torch.Tensor) -> torch.Tensor:
    """Return the tilt of a body's z axis: 0 down, 0.5 level, 1 up. Shape: (num_envs, 4) -> (num_envs,)."""
    _, x, y, _ = orientation.unbind(-1)
    # Half of one plus the cosine of the angle to the vertical.
    return 1 - (x * x + y * y)


def closeness(distance: torch.Tensor, half_at: float) -> torch.Tensor:
    """Return 1 at distance 0, 0.5 at ``half_at``, with a long tail that keeps a slope. Shape: (num_envs,)."""
    relative = distance / half_at
    return torch.reciprocal(1 + relative * relative)


def progress(value: torch.Tensor, start: float, goal: float) -> torch.Tensor:
    """Return the progress of values (num_envs,) from ``start`` (0) to ``goal`` (1), clipped to that range."""
    return ((value - start) / (goal - start)).clamp(0, 1)


def count_while(condition: torch.Tensor, count: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
    """Return the number of consecutive control steps for which a condition has held. Shape: (num_envs,), int64."""
    # Env slots that made no step keep their count.
    return torch.where(running, (count + 1) * condition, count)


def moved_by_hand(so_far: torch.Tensor, way: torch.Tensor, touched: torch.Tensor, fastest: float) -> torch.Tensor:
    """Return the way (num_envs,) that a hand has moved a joint: touched, and at most ``fastest`` per step."""
    return (so_far + torch.where(touched & (way <= fastest), way, 0.0)).clamp(min=0.0)


def off_the_table(position: torch.Tensor) -> torch.Tensor:
    """True where a thing is below the table top or outside its area. Shape: (num_envs, 3) -> (num_envs,)."""
    low, high = _table_area(position.dtype, position.device)
    return ((position < low) | (position > high)).any(dim=-1)


@lru_cache
def _table_area(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest and highest corner of the space above the table [m]. Shapes: (3,), (3,)."""
    corners = (-0.22, -0.6, -0.02), (1.02, 0.6, math.inf)
    low, high = (torch.tensor(corner, dtype=dtype, device=device) for corner in corners)
    return low, high


def inside_box(
    position: torch.Tensor, low: tuple[float, float, float], high: tuple[float, float, float]
) -> torch.Tensor:
    """True where points (num_envs, 3) [m] lie in an axis-aligned box. Shape: (num_envs,), bool."""
    x, y, z = position.unbind(-1)
    return (x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1]) & (z >= low[2]) & (z <= high[2])


# Rewards of legged robots.

total = sum_in_order  # over the last dimension, left to right in every batch: (num_envs, n) -> (num_envs,)


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
