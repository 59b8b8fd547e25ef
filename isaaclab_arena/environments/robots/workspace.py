"""Where on the table a robot works, and how tasks that were laid out for one robot fit another."""

import math
from dataclasses import dataclass
from typing import TypeAlias

Area: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Lowest and highest corner of a box."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The part of the table, and of the space above it, in which a robot can do its work.

    Tasks are laid out for the reference workspace, the Panda's. For another robot, what lies at a corner of the
    reference box is put at the same corner of the robot's own.

    Attributes:
        low: Lowest corner: x, y and z [m].
        high: Highest corner: x, y and z [m].
        reach_m: How far from its base the robot can touch anything, seen from above [m].
        tallest_m: Height of the tallest thing that it can take from above or push [m].
    """

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    reach_m: float
    tallest_m: float = math.inf

    def on_table(self, low: tuple[float, ...], high: tuple[float, ...]) -> Area:
        """Return an area of the reference table where this robot has it.

        Args:
            low: Lowest x and y [m], and whatever else is drawn with them, which is left as it is.
            high: The highest, likewise.
        """
        return self._fitted(low, 2), self._fitted(high, 2)

    def in_space(self, low: tuple[float, float, float], high: tuple[float, float, float]) -> Area:
        """Return a box of the reference workspace where this robot has it; x, y and z [m]."""
        return self._fitted(low, 3), self._fitted(high, 3)

    def _fitted(self, corner: tuple[float, ...], num_axes: int) -> tuple[float, ...]:
        reference = REFERENCE_WORKSPACE
        if (self.low, self.high) == (reference.low, reference.high):
            return corner
        fitted = [
            self.low[axis]
            + (corner[axis] - reference.low[axis])
            * (self.high[axis] - self.low[axis])
            / (reference.high[axis] - reference.low[axis])
            for axis in range(num_axes)
        ]
        return (*fitted, *corner[num_axes:])


REFERENCE_WORKSPACE = Workspace(low=(0.40, -0.25, 0.10), high=(0.60, 0.25, 0.45), reach_m=0.855)
