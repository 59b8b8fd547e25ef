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
    """Return where hands have to be to push things to their goals, level with the things.

    That is behind the thing, seen from the goal: anywhere on a short line for a hand that is behind it, and at the
    far end of the line for one that is not, so that there is room to come down.

    Args:
        hand: Where the hands are [m]. Shape: (num_envs, 3).
        position: Where the things are [m]. Shape: (num_envs, 3).
        goal: Where they should be, seen from above [m]. Shape: (num_envs, 3).
        gap: Distances from a thing's centre to the near and the far end of the line [m].

    Returns:
        Shape: (num_envs, 3).
    """
    near, far = gap
    way = (goal - position)[:, :2] / horizontal_distance(goal, position)[:, None].clamp(min=1e-6)
    offset = (hand - position)[:, :2]
    back = -(offset[:, 0] * way[:, 0] + offset[:, 1] * way[:, 1])
    distance = torch.where(back > 0.7 * near, back.clamp(near, far), far)
    return torch.cat((position[:, :2] - way * distance[:, None], position[:, 2:]), dim=1)


def upright(orientation: torch.Tensor) -> torch.Tensor:
    """Return whether a body's z axis points up, to about 18 degrees. Shape: (num_envs, 4) -> (num_envs,), bool."""
    _, x, y, _ = orientation.unbind(-1)
    return 1 - 2 * (x * x + y * y) > 0.95


def tilt_from_down(orientation: torch.Tensor) -> torch.Tensor:
    """Return how far a body's z axis is from pointing down: 0 if it does, 0.5 level, 1 if it points up.

    Args:
        orientation: Shape: (num_envs, 4).

    Returns:
        Half of one plus the cosine of the angle to the vertical. Shape: (num_envs,).
    """
    _, x, y, _ = orientation.unbind(-1)
    return 1 - (x * x + y * y)


def closeness(distance: torch.Tensor, half_at: float) -> torch.Tensor:
    """Return 1 at distance 0, 0.5 at ``half_at``, and a long tail that still has a slope far away.

    Args:
        distance: Shape: (num_envs,), not negative.
        half_at: Distance at which the term is 0.5, in the unit of ``distance``.
    """
    relative = distance / half_at
    return torch.reciprocal(1 + relative * relative)


def progress(value: torch.Tensor, start: float, goal: float) -> torch.Tensor:
    """Return how far a value has come from ``start`` (0) to ``goal`` (1), clipped to that range.

    Args:
        value: Shape: (num_envs,).
        start: Value that counts as no progress.
        goal: Value that counts as done.
    """
    return ((value - start) / (goal - start)).clamp(0, 1)


def count_while(condition: torch.Tensor, count: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
    """Return for how many control consecutive steps a condition has held.

    Args:
        condition: Whether it holds now. Shape: (num_envs,), bool.
        count: The count one step ago. Shape: (num_envs,), int64.
        running: Env slots that made this step; the others keep their count. Shape: (num_envs,), bool.
    """
    return torch.where(running, (count + 1) * condition, count)


def moved_by_hand(so_far: torch.Tensor, way: torch.Tensor, touched: torch.Tensor, fastest: float) -> torch.Tensor:
    """Return how far a joint has been moved by a hand: way without a hand, or faster than hands are, does not count.

    Args:
        so_far: Way that counted before this step. Shape: (num_envs,).
        way: Way that the joint made in this step, negative backwards. Shape: (num_envs,).
        touched: Whether the hand touches what moves. Shape: (num_envs,), bool.
        fastest: Longest way that counts in one step, in the unit of ``way``.
    """
    counts = touched & (way <= fastest)
    return (so_far + torch.where(counts, way, 0.0)).clamp(min=0.0)


def off_the_table(position: torch.Tensor) -> torch.Tensor:
    """Return whether a thing has fallen below the table top or left its area. Shape: (num_envs, 3) -> (num_envs,)."""
    low, high = _table_area(position.dtype, position.device)
    return ((position < low) | (position > high)).any(dim=-1)


@lru_cache
def _table_area(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest and the highest corner of where things are on the table [m]. Shapes: (3,), (3,)."""
    corners = (-0.22, -0.6, -0.02), (1.02, 0.6, math.inf)
    low, high = (torch.tensor(corner, dtype=dtype, device=device) for corner in corners)
    return low, high


def inside_box(
    position: torch.Tensor, low: tuple[float, float, float], high: tuple[float, float, float]
) -> torch.Tensor:
    """Return whether points lie in an axis-aligned box. Shape: (num_envs, 3) -> (num_envs,).

    Args:
        position: Points [m].
        low: Lowest corner [m].
        high: Highest corner [m].
    """
    x, y, z = position.unbind(-1)
    return (x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1]) & (z >= low[2]) & (z <= high[2])
