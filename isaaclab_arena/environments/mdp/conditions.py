"""Drawing and reading the conditions of an episode: points, numbers and upright poses."""

import math
from collections.abc import Sequence

import numpy as np

from isaaclab_arena.interfaces.episode import ConditionValue


def draw_uniform(generator: np.random.Generator, low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...]:
    """Draw a point of a box, as plain numbers that fit into JSON."""
    # These are the numbers of generator.uniform(low, high), which takes four times as long.
    shares = generator.random(len(low)).tolist()
    return tuple(least + (most - least) * share for least, most, share in zip(low, high, shares, strict=True))


def upright_pose(position: ConditionValue, yaw: ConditionValue) -> tuple[float, ...]:
    """Return position and quaternion of a thing that stands upright at ``position`` [m], turned by ``yaw`` [rad]."""
    half = number(yaw) / 2
    return (*point(position), math.cos(half), 0.0, 0.0, math.sin(half))


def point(value: ConditionValue) -> tuple[float, ...]:
    """Return a condition that must be a point, as conditions come back from JSON as lists.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"a condition must be a sequence of numbers, got {value!r}")
    return tuple(map(float, value))


def number(value: ConditionValue) -> float:
    """Return a condition that must be a number.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"a condition must be a number, got {value!r}")
    return float(value)
