"""Work out from how many worlds on a GPU is quicker than the CPU, between numbers of worlds that were measured."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """A number of worlds, or on which side of what was measured it lies."""

    # ``between`` numbers that were measured, ``below`` the smallest, where the GPU was always quicker, or
    # ``above`` the largest, where it was not.
    side: Literal["between", "below", "above"]
    worlds: float  # That number.

    def __str__(self) -> str:
        """Return it as it stands in a table."""
        number = f"{self.worlds:,.0f}"
        return number if self.side == "between" else f"{self.side} {number}"


def crossover(speeds: Iterable[tuple[int, float, float]]) -> Crossover:
    """Return from how many worlds on the first speed is the higher one, for good.

    The ratio of the speeds is taken for a power of the number of worlds between two that were measured, a straight
    line in a plot with logarithmic axes.

    Args:
        speeds: Number of worlds, speed on the GPU, speed on the CPU; at least one.
    """
    points = sorted((worlds, math.log(gpu / cpu)) for worlds, gpu, cpu in speeds)
    if points[-1][1] < 0:
        return Crossover(side="above", worlds=points[-1][0])
    slower = [index for index, (_, gain) in enumerate(points) if gain < 0]
    if not slower:
        return Crossover(side="below", worlds=points[0][0])
    (before, loss), (after, gain) = points[slower[-1]], points[slower[-1] + 1]
    place = -loss / (gain - loss)
    return Crossover(side="between", worlds=before * (after / before) ** place)
