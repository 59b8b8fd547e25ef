"""Lines, dots and words, drawn once and written as SVG or as PNG."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

from PIL import Image, ImageDraw, ImageFont

_SAMPLES = 4
"""Pixels of the drawing for one of the picture, along each side; their mean makes edges smooth."""

GRID, _INK = "#e2e8f0", "#334155"
"""Colours of the lines behind a plot, and of its words."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, in units of the picture from its upper left corner."""

    points: Sequence[tuple[float, float]]
    colour: str
    width: float = 1.0


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
    colour: str = _INK
    size: float = 13.0
    anchor: Literal["start", "middle", "end"] = "start"


Mark: TypeAlias = Line | Area | Dot | Words


@dataclass(frozen=True, kw_only=True)
class RateCurve:
    """A curve of rates with the band of their intervals."""

    points: Sequence[tuple[float, float, float, float]]  # place along the plot, rate, low, high; all from 0 to 1
    colour: str
    band: str  # its colour


def rate_plot(
    curves: Sequence[RateCurve],
    *,
    left: float,
    top: float,
    width: float,
    height: float,
    percents: Sequence[int],
    size: float | None,
) -> list[Mark]:
    """Return a grid at some percents, and curves on it; `size` is that of the grid's labels, None without labels."""
    marks: list[Mark] = []
    for percent in percents:
        y = top + (1 - percent / 100) * height
        marks.append(Line(points=[(left, y), (left + width, y)], colour=GRID))
        if size is not None:
            marks.append(Words(at=(left - 7, y + 4), text=f"{percent} %", size=size, anchor="end"))
    # All bands come before the curves, so that no band hides a line.
    lines: list[Mark] = []
    for curve in curves:
        centres, lows, highs = (
            [(left + along * width, top + (1 - ends[at]) * height) for along, *ends in curve.points] for at in range(3)
        )
        # A single point has no band, so a line shows its interval.
        band = Area(points=[*lows, *reversed(highs)], colour=curve.band)
        marks.append(band if len(centres) > 1 else Line(points=[*lows, *highs], colour=curve.colour, width=1.5))
        lines.append(Line(points=centres, colour=curve.colour, width=2.0))
        lines += [Dot(centre=centre, radius=3.5, colour=curve.colour) for centre in centres]
    return [*marks, *lines]


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
