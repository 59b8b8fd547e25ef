"""Draw success over level, one small plot per axis, all on the same scale."""

from collections.abc import Sequence

from isaaclab_arena.analysis.replays.picture import Area, Dot, Line, Mark, Picture, Words
from isaaclab_arena.analysis.robustness.drops import Drop
from isaaclab_arena.environments.variations.axes import BENIGN

_COLUMNS = 5
_WIDTH, _HEIGHT = 150, 130
_LEFT, _TOP, _GAP_X, _GAP_Y = 48, 40, 18, 44
_INK, _GRID = "#334155", "#e2e8f0"
_LINE, _BAND = "#0f766e", "#ccfbf1"


def slope_picture(found: Sequence[Drop]) -> Picture:
    """Return the picture of one job.

    Args:
        found: Its arms, the benign one among them.
    """
    start = [each for each in found if each.axis == BENIGN]
    axes = list(dict.fromkeys(each.axis for each in found if each.axis != BENIGN))
    last = max((each.level for each in found), default=1) or 1
    marks: list[Mark] = [
        Words(at=(_LEFT, 20), text=f"{found[0].job}: success by level, with 95 % intervals", colour=_INK)
    ]
    for position, axis in enumerate(axes):
        line, column = divmod(position, _COLUMNS)
        left, top = _LEFT + column * (_WIDTH + _GAP_X), _TOP + line * (_HEIGHT + _GAP_Y)
        points = sorted([*start, *(each for each in found if each.axis == axis)], key=lambda each: each.level)
        marks += _plot(axis, points, last, left, top, has_scale=column == 0)
    lines = -(-len(axes) // _COLUMNS)
    told = "; ".join(f"{each.axis} {each.level}: {100 * each.rate:.0f} %" for each in found if each.rate is not None)
    return Picture(
        width=_LEFT + min(len(axes), _COLUMNS) * (_WIDTH + _GAP_X) + 4,
        height=_TOP + lines * (_HEIGHT + _GAP_Y),
        marks=marks,
        description=f"Success by level of each axis. {told}",
    )


def _plot(axis: str, points: Sequence[Drop], last: int, left: float, top: float, *, has_scale: bool) -> list[Mark]:
    height = _HEIGHT - 24

    def place(level: int, rate: float) -> tuple[float, float]:
        return left + _WIDTH * level / last, top + 20 + (1 - rate) * height

    marks: list[Mark] = [Words(at=(left, top + 10), text=axis, colour=_INK, size=12.0)]
    for percent in (0, 50, 100):
        y = place(0, percent / 100)[1]
        marks.append(Line(points=[(left, y), (left + _WIDTH, y)], colour=_GRID))
        if has_scale:
            marks.append(Words(at=(left - 6, y + 4), text=f"{percent} %", colour=_INK, size=10.0, anchor="end"))
    drawn = [(each.level, each.rate, each.interval) for each in points if each.rate is not None and each.interval]
    band = [place(level, interval.low) for level, _, interval in drawn]
    band += [place(level, interval.high) for level, _, interval in reversed(drawn)]
    centres = [place(level, rate) for level, rate, _ in drawn]
    if len(drawn) > 1:
        marks += [Area(points=band, colour=_BAND), Line(points=centres, colour=_LINE, width=2.0)]
    marks += [Dot(centre=centre, radius=3.0, colour=_LINE) for centre in centres]
    for level in (0, last):
        at = place(level, 0.0)
        marks.append(Words(at=(at[0], at[1] + 14), text=str(level), colour=_INK, size=10.0, anchor="middle"))
    return marks
