"""Lines, dots and words, drawn once and written as SVG or as PNG, and the picture of a decision."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from isaaclab_arena.analysis.decision_replay import DecisionReplay
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.stopping import verdict_in_words

# Draw lines, dots and words once, and write them as SVG or PNG.

_SAMPLES = 4
"""Pixels of the drawing for one of the picture, along each side; their mean makes edges smooth."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, in units of the picture from its upper left corner."""

    points: Sequence[tuple[float, float]]
    colour: str
    width: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A filled rectangle without a border."""

    left: float
    top: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Area:
    """A filled polygon without a border, such as the band of an interval."""

    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A filled circle."""

    centre: tuple[float, float]
    radius: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Words:
    """One line of text; its baseline starts, is centred or ends at a point."""

    at: tuple[float, float]
    text: str
    colour: str
    size: float = 13.0
    anchor: Literal["start", "middle", "end"] = "start"


Mark: TypeAlias = Line | Bar | Area | Dot | Words


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawing on white."""

    width: int  # units, which are pixels of a PNG with scale 1
    height: int
    marks: Sequence[Mark]  # drawn in this order
    description: str  # one sentence for screen readers


def svg(picture: Picture) -> str:
    """Return a picture as an SVG document."""
    size = f'width="{picture.width}" height="{picture.height}" viewBox="0 0 {picture.width} {picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">',
        f"<title>{escape(picture.description)}</title>",
        f'<rect width="{picture.width}" height="{picture.height}" fill="#ffffff"/>',
    ]
    for mark in picture.marks:
        match mark:
            case Line():
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
                shape = f'fill="none" stroke="{mark.colour}" stroke-width="{mark.width:g}" stroke-linejoin="round"'
                lines.append(f'<polyline points="{points}" {shape}/>')
            case Bar():
                shape = f'width="{mark.width:.1f}" height="{mark.height:.1f}" fill="{mark.colour}"'
                lines.append(f'<rect x="{mark.left:.1f}" y="{mark.top:.1f}" {shape}/>')
            case Area():
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
                lines.append(f'<polygon points="{points}" fill="{mark.colour}"/>')
            case Dot():
                x, y = mark.centre
                lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius:g}" fill="{mark.colour}"/>')
            case Words():
                place = f'x="{mark.at[0]:.1f}" y="{mark.at[1]:.1f}" text-anchor="{mark.anchor}"'
                style = f'font-size="{mark.size:g}" fill="{mark.colour}"'
                lines.append(f"<text {place} {style}>{escape(mark.text)}</text>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def png(picture: Picture, *, scale: int = 2) -> bytes:
    """Return a picture as a PNG file; `scale` is pixels per unit."""
    # Drawn larger and averaged, because Pillow does not smooth edges.
    times = scale * _SAMPLES
    drawn = Image.new("RGB", (picture.width * times, picture.height * times), "#ffffff")
    draw = ImageDraw.Draw(drawn)
    for mark in picture.marks:
        match mark:
            case Line():
                points = [(x * times, y * times) for x, y in mark.points]
                draw.line(points, fill=mark.colour, width=max(1, round(mark.width * times)), joint="curve")
            case Bar():
                left, top = mark.left * times, mark.top * times
                # Pillow includes the last pixel.
                right, bottom = left + mark.width * times - 1, top + mark.height * times - 1
                if right >= left and bottom >= top:
                    draw.rectangle((left, top, right, bottom), fill=mark.colour)
            case Area():
                draw.polygon([(x * times, y * times) for x, y in mark.points], fill=mark.colour)
            case Dot():
                (x, y), radius = mark.centre, mark.radius
                box = ((x - radius) * times, (y - radius) * times, (x + radius) * times, (y + radius) * times)
                draw.ellipse(box, fill=mark.colour)
            case Words():
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
                font, at = ImageFont.load_default(mark.size * times), (mark.at[0] * times, mark.at[1] * times)
                draw.text(at, mark.text, fill=mark.colour, font=font, anchor=anchor)
    small = drawn.resize((picture.width * scale, picture.height * scale), Image.Resampling.BOX)
    written = io.BytesIO()
    small.save(written, "PNG", optimize=True)
    return written.getvalue()


# The picture of a decision: the evidence after each episode, and below it the decisions of other orders.

_WIDTH, _HEIGHT = 720, 472
_LEFT, _RIGHT = 64, 24
_TOP, _CURVE_BOTTOM, _BARS_TOP, _BARS_BOTTOM = 76, 312, 350, 414
_INK, _QUIET, _GRID, _CURVE, _AFTER, _NEEDED, _BARS = (
    "#1f2328", "#59636e", "#e4e7eb", "#0072b2", "#a9cbe3", "#d55e00", "#8c959f"
)  # fmt: skip


def question_in_words(question: Question) -> str:
    """Return the question as a sentence."""
    if question.at_least is not None:
        return f"does {question.jobs[0]} succeed in at least {100 * question.at_least:g} %?"
    if question.margin is not None:
        return f"is {question.jobs[0]} at most {100 * question.margin:g} points worse than {question.jobs[1]}?"
    return f"is {question.jobs[0]} better or worse than {question.jobs[1]}?"


def decision_in_words(replay: DecisionReplay) -> str:
    """Return the decision in the run's order as a sentence."""
    if replay.decision is None:
        return f"undecided after {replay.num_episodes} episodes (e-value {math.exp(replay.log_e_values[-1]):.3g})"
    decided, verdict = replay.decision, verdict_in_words(replay.question, replay.decision.verdict)
    evidence = f"e-value {math.exp(decided.log_e_value):.3g}"
    return f"{verdict}, decided after {decided.episodes} of {replay.num_episodes} episodes ({evidence})"


def histogram(replay: DecisionReplay, num_bars: int) -> Mapping[tuple[int, int], int]:
    """Return the number of other orders that decided in each range of episodes (first, last)."""
    width = max(1, math.ceil(replay.num_episodes / num_bars))
    ranges = [
        (start, min(start + width - 1, replay.num_episodes)) for start in range(1, replay.num_episodes + 1, width)
    ]
    counts = np.bincount([(each.episodes - 1) // width for each in replay.reordered], minlength=len(ranges))
    return dict(zip(ranges, counts.tolist(), strict=True))


def decision_picture(replay: DecisionReplay) -> Picture:
    """Return the picture of a decision."""

    def cut(text: str, most: int) -> str:
        return text if len(text) <= most else text[: most - 1] + "…"

    title, finding = f"{replay.question.name}: {question_in_words(replay.question)}", decision_in_words(replay)
    marks = [
        Words(at=(_LEFT, 26), text=cut(title, 80), colour=_INK, size=16.0),
        Words(at=(_LEFT, 46), text=cut(finding, 100), colour=_QUIET),
        *_evidence(replay),
        *_bars(replay),
    ]
    return Picture(width=_WIDTH, height=_HEIGHT, marks=marks, description=f"{title} {finding}")


def _evidence(replay: DecisionReplay) -> Iterator[Line | Words | Dot]:
    """Yield the evidence after each episode over a grid, with the line that decides."""
    # The ends of the scale are powers of ten.
    values = [0.0, replay.needed_log_e_value + 0.5, *replay.log_e_values.tolist()]
    low, high = math.floor(min(values) / math.log(10.0) - 1e-9), math.ceil(max(values) / math.log(10.0))

    def height(log_e_value: float) -> float:
        return _CURVE_BOTTOM - (_CURVE_BOTTOM - _TOP - 8) * (log_e_value / math.log(10.0) - low) / (high - low)

    def step(length: int, most: int) -> int:
        """Return the least of 1, 2, 5, 10, 20 … that divides a length into at most `most` steps."""
        return next(each * 10**power for power in range(20) for each in (1, 2, 5) if length <= most * each * 10**power)

    # Both axes with their grid.
    right, every = _WIDTH - _RIGHT, step(high - low, 7)
    for decade in range(math.ceil(low / every) * every, high + 1, every):
        y = height(decade * math.log(10.0))
        yield Line(points=((_LEFT, y), (right, y)), colour=_GRID)
        label = f"{10.0**decade:g}" if -3 <= decade <= 3 else f"1e{decade}"
        yield Words(at=(_LEFT - 8, y + 4), text=label, colour=_QUIET, size=12.0, anchor="end")
    for episode in range(0, replay.num_episodes + 1, step(replay.num_episodes, 10)):
        at = (_x(replay, episode), _BARS_BOTTOM + 18)
        yield Words(at=at, text=str(episode), colour=_QUIET, size=12.0, anchor="middle")
    axis = "episodes of the job" if len(replay.question.jobs) == 1 else "episodes of each job"
    yield Words(at=((_LEFT + right) / 2, _HEIGHT - 16), text=axis, colour=_QUIET, anchor="middle")
    yield Words(at=(_LEFT - 8, _TOP - 8), text="e-value", colour=_QUIET, size=12.0, anchor="end")

    # The line that decides. Its label is at the end where the curve does not cross the line.
    y = height(replay.needed_log_e_value)
    yield Line(points=((_LEFT, y), (right, y)), colour=_NEEDED, width=1.2)
    needed = f"{math.exp(replay.needed_log_e_value):g} decides"
    if replay.decision is not None and 2 * replay.decision.episodes < replay.num_episodes:
        yield Words(at=(right, y - 6), text=needed, colour=_NEEDED, size=12.0, anchor="end")
    else:
        yield Words(at=(_LEFT + 6, y - 6), text=needed, colour=_NEEDED, size=12.0)

    # The curve, paler after the decision.
    evidence = [0.0, *map(float, replay.log_e_values)]
    points = [(_x(replay, number), height(each)) for number, each in enumerate(evidence)]
    decided = len(points) if replay.decision is None else replay.decision.episodes + 1
    yield Line(points=points[max(0, decided - 1) :], colour=_AFTER, width=1.6)
    yield Line(points=points[:decided], colour=_CURVE, width=2.0)
    if replay.decision is not None:
        yield Dot(centre=points[replay.decision.episodes], radius=4.5, colour=_NEEDED)


def _bars(replay: DecisionReplay) -> Iterator[Bar | Line | Words]:
    """Yield the number of other orders that decide after each number of episodes."""
    bars = histogram(replay, 50)
    highest = max(1, *bars.values())
    for (first, last), count in bars.items():
        left, right = _x(replay, first - 1), _x(replay, last)
        height = (_BARS_BOTTOM - _BARS_TOP) * count / highest
        if count:
            yield Bar(left=left + 0.5, top=_BARS_BOTTOM - height, width=right - left - 1.0, height=height, colour=_BARS)
    yield Line(points=((_LEFT, _BARS_BOTTOM), (_WIDTH - _RIGHT, _BARS_BOTTOM)), colour=_QUIET)
    told = f"{len(replay.reordered):,} of {replay.num_orders:,} other orders of these episodes decide, after so many"
    yield Words(at=(_LEFT, _BARS_TOP - 8), text=told, colour=_QUIET, size=12.0)


def _x(replay: DecisionReplay, episodes: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * episodes / max(1, replay.num_episodes)
