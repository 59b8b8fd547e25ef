"""Find the spans of moments in which something holds."""

from typing import TypeAlias

import numpy as np

Span: TypeAlias = tuple[int, int]
"""First and last moment."""


def spans(holds: np.ndarray, *, shortest: int = 1, gap: int = 0) -> list[Span]:
    """Return the spans in which something holds, in order.

    Args:
        holds: Shape: (moments,), bool.
        shortest: Moments that a span has at least.
        gap: Moments without it that do not end a span.
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False]))))
    found: list[Span] = []
    for begun, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        goes_on = bool(found) and begun - found[-1][1] - 1 <= gap
        found.append((found.pop()[0] if goes_on else begun, end - 1))
    return [(first, last) for first, last in found if last - first + 1 >= shortest]


def ends(holds: np.ndarray, *, shortest: int, gap: int) -> list[Span]:
    """Return the moments in which something that had held does not any more; see `spans`."""
    found = spans(holds, shortest=shortest, gap=gap)
    return [(last + 1, last + 1) for _, last in found if last + 1 < len(holds)]


def visits(distance: np.ndarray, *, reach: float, left: float) -> list[Span]:
    """Return the spans that begin within ``reach`` and last until the distance is more than ``left``."""
    found: list[Span] = []
    inside, begun = False, 0
    for moment in np.flatnonzero((distance <= reach) | (distance > left)).tolist():
        near = bool(distance[moment] <= reach)
        if near and not inside:
            inside, begun = True, moment
        elif inside and not near:
            inside = False
            found.append((begun, moment - 1))
    return [*found, (begun, len(distance) - 1)] if inside else found
