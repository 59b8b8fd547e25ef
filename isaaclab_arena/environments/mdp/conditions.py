"""Drawing and reading the conditions of an episode: points, numbers and upright poses."""

import math
from collections.abc import Sequence

import numpy as np

from isaaclab_arena.interfaces.episode import ConditionValue


def draw_uniform(generator: np.random.Generator, low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...]:
    """Draw a point of a box, as plain numbers that fit into JSON."""
    # The same numbers as generator.uniform(low, high), in a quarter of the time.
    shares = generator.random(len(low)).tolist()
    return tuple(least + (most - least) * share for least, most, share in zip(low, high, shares, strict=True))


def upright_pose(position: ConditionValue, yaw: ConditionValue) -> tuple[float, ...]:
    """Return position and quaternion of an upright thing at ``position`` [m], turned by ``yaw`` [rad]."""
    half = number(yaw) / 2
    return (*point(position), math.cos(half), 0.0, 0.0, math.sin(half))


def point(value: ConditionValue) -> tuple[float, ...]:
    """Convert a condition to a point; TypeError for no sequence of numbers. JSON turns points into lists."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"a condition must be a sequence of numbers, got {value!r}")
    return tuple(map(float, value))


def number(value: ConditionValue) -> float:
    """Convert a condition to a number; TypeError for any other value."""
    if not isinstance(value, int | float):
        raise TypeError(f"a condition must be a number, got {value!r}")
    return float(value)
