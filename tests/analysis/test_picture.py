import io
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from isaaclab_arena.analysis.picture import Dot, Line, Picture, Words, png, svg

SVG = "{http://www.w3.org/2000/svg}"


def picture(*marks: Line | Dot | Words) -> Picture:
    return Picture(width=60, height=40, marks=marks, description="what <it> shows")


def pixels(drawn: Picture, scale: int = 1) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png(drawn, scale=scale))))


def test_both_formats_have_the_size_that_was_asked_for():
    document = ET.fromstring(svg(picture()))
    assert (document.get("width"), document.get("height")) == ("60", "40")
    assert pixels(picture(), scale=2).shape == (80, 120, 3)


def test_an_svg_holds_every_mark_and_says_what_it_shows():
    marks = (
        Line(points=((1, 2), (3, 4)), colour="#ff0000", width=2),
        Dot(centre=(9, 10), radius=3, colour="#0000ff"),
        Words(at=(11, 12), text="a < b & c", colour="#000000", anchor="end"),
    )
    document = ET.fromstring(svg(picture(*marks)))
    title, ground, line, dot, words = document
    assert (title.text, ground.get("fill")) == ("what <it> shows", "#ffffff")
    assert (line.tag, line.get("points"), line.get("stroke")) == (f"{SVG}polyline", "1.0,2.0 3.0,4.0", "#ff0000")
    assert (dot.tag, dot.get("cx"), dot.get("r")) == (f"{SVG}circle", "9.0", "3")
    assert (words.tag, words.text, words.get("text-anchor")) == (f"{SVG}text", "a < b & c", "end")


@pytest.mark.parametrize(
    ("mark", "inside", "outside"),
    [
        (Line(points=((5, 20), (55, 20)), colour="#ff0000", width=4), (20, 30), (30, 30)),
        (Dot(centre=(30, 20), radius=5, colour="#ff0000"), (20, 30), (20, 40)),
    ],
)
def test_a_png_shows_a_mark_where_it_is(mark, inside, outside):
    shown = pixels(picture(mark))
    assert shown[inside].tolist() == [255, 0, 0]
    assert shown[outside].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("anchor", "left"), [("start", False), ("end", True)])
def test_words_begin_or_end_at_their_point(anchor, left):
    dark = pixels(picture(Words(at=(30, 25), text="xxx", colour="#000000", anchor=anchor))).min(axis=2) < 128
    assert dark[:, :29].any() == left
    assert dark[:, 31:].any() != left
