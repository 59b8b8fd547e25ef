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
    if not holds.any():
        return []
    edges = _turns(holds)
    found: list[Span] = []
    for begun, end in zip(edges[::2], edges[1::2], strict=True):
        goes_on = bool(found) and begun - found[-1][1] - 1 <= gap
        found.append((found.pop()[0] if goes_on else begun, end - 1))
    return [(first, last) for first, last in found if last - first + 1 >= shortest]


def ends(holds: np.ndarray, *, shortest: int, gap: int) -> list[Span]:
    """Return the moments in which something that had held does not any more; see `spans`."""
    found = spans(holds, shortest=shortest, gap=gap)
    return [(last + 1, last + 1) for _, last in found if last + 1 < len(holds)]


def visits(distance: np.ndarray, *, reach: float, left: float) -> list[Span]:
    """Return the spans that begin within ``reach`` and last until the distance is more than ``left``."""
    near = distance <= reach
    if not near.any():
        return []
    # What lies between the two changes nothing.
    told = np.flatnonzero(near | (distance > left))
    moments = [*told.tolist(), len(distance)]
    edges = [moments[turn] for turn in _turns(near[told])]
    return [(begun, end - 1) for begun, end in zip(edges[::2], edges[1::2], strict=True)]


def _turns(holds: np.ndarray) -> list[int]:
    """Return where something begins to hold and where it ends, in turn; what holds at the end ends after it."""
    inner = (np.flatnonzero(holds[1:] != holds[:-1]) + 1).tolist()
    return [*([0] if holds[0] else []), *inner, *([len(holds)] if holds[-1] else [])]
