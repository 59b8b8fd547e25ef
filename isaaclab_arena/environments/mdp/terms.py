"""Reward and success terms: pure functions of tensors, one number per env slot.

Only elementwise arithmetic without transcendental functions, so that an env slot's numbers are the same in every batch.
"""

import math
from functools import lru_cache

import torch

from isaaclab_arena.sim.math import norm


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
    counts = touched & (way <= fastest)
    return (so_far + torch.where(counts, way, 0.0)).clamp(min=0.0)


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
