"""Draw a learning curve: success by step, with the band of its intervals."""

from collections.abc import Sequence

from isaaclab_arena.analysis.picture import Area, Dot, Line, Mark, Picture, Words
from isaaclab_arena.evaluation.watching.curve.point import Point

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 24, 64
_INK, _GRID = "#334155", "#e2e8f0"
_COLOURS = (("#0f766e", "#ccfbf1"), ("#c2410c", "#ffedd5"), ("#1d4ed8", "#dbeafe"), ("#7e22ce", "#f3e8ff"))
"""Line and band of one job after the other; they begin anew where there are more jobs."""


def curve_picture(points: Sequence[Point]) -> Picture:
    """Return the picture of a learning curve.

    Args:
        points: At least one, in the order of their jobs and steps.
    """
    steps = [point.step for point in points]
    first, last = min(steps), max(steps)

    def place(step: int, rate: float) -> tuple[float, float]:
        along = (step - first) / (last - first) if last > first else 0.5
        return _LEFT + along * (_WIDTH - _LEFT - _RIGHT), _TOP + (1 - rate) * (_HEIGHT - _TOP - _BOTTOM)

    jobs = list(dict.fromkeys(point.job for point in points))
    marks: list[Mark] = list(_axes(first, last))
    of_jobs = [
        ([point for point in points if point.job == job], _COLOURS[i % len(_COLOURS)]) for i, job in enumerate(jobs)
    ]
    for own, (_, band) in of_jobs:
        low = [place(point.step, point.success_low) for point in own]
        high = [place(point.step, point.success_high) for point in own]
        marks.append(Area(points=[*low, *reversed(high)], colour=band))
    for own, (colour, _) in of_jobs:
        centres = [place(point.step, point.success_rate) for point in own]
        marks.append(Line(points=centres, colour=colour, width=2.0))
        # A single checkpoint has no band, so its interval is a line.
        if len(own) == 1:
            ends = [place(own[0].step, rate) for rate in (own[0].success_low, own[0].success_high)]
            marks.append(Line(points=ends, colour=colour, width=1.5))
        marks += [Dot(centre=centre, radius=3.5, colour=colour) for centre in centres]
    marks += _legend(jobs)
    told = ", ".join(f"{point.job} at {point.step}: {100 * point.success_rate:.0f} %" for point in points[:20])
    return Picture(
        width=_WIDTH, height=_HEIGHT, marks=marks, description=f"Success by step with 95 % intervals. {told}"
    )


def _axes(first: int, last: int) -> list[Mark]:
    marks: list[Mark] = []
    for percent in (0, 25, 50, 75, 100):
        y = _TOP + (1 - percent / 100) * (_HEIGHT - _TOP - _BOTTOM)
        marks.append(Line(points=[(_LEFT, y), (_WIDTH - _RIGHT, y)], colour=_GRID))
        marks.append(Words(at=(_LEFT - 8, y + 4), text=f"{percent} %", colour=_INK, size=12.0, anchor="end"))
    below = _HEIGHT - _BOTTOM + 20
    marks.append(Words(at=(_LEFT, below), text=f"{first:,}", colour=_INK, size=12.0))
    marks.append(Words(at=(_WIDTH - _RIGHT, below), text=f"{last:,}", colour=_INK, size=12.0, anchor="end"))
    marks.append(Words(at=(_WIDTH / 2, below), text="step of the checkpoint", colour=_INK, size=12.0, anchor="middle"))
    return marks


def _legend(jobs: Sequence[str]) -> list[Mark]:
    marks: list[Mark] = []
    left = float(_LEFT)
    for position, job in enumerate(jobs):
        colour = _COLOURS[position % len(_COLOURS)][0]
        marks.append(Dot(centre=(left + 4, _HEIGHT - 18), radius=4.0, colour=colour))
        marks.append(Words(at=(left + 14, _HEIGHT - 14), text=job, colour=_INK, size=12.0))
        left += 30 + 7.0 * len(job)
    return marks
