"""Draws captions into pictures, makes pictures smaller, and writes them as PNG or as a small poster."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from isaaclab_arena.storage.atomic import write_bytes

BAR_HEIGHT = 16

POSTER_SIDE = 240
"""Pixels of a poster's longer side; a picture that is smaller keeps its size."""
POSTER_BYTES = 6_000
"""Largest file of a poster, so that a page can hold hundreds of them."""

_TEXT_SIZE = 11
_TEXT = (240, 240, 240)
_BACKGROUND = (24, 24, 28)


def caption_bar(width: int, texts: Sequence[str]) -> np.ndarray:
    """Return a bar with the first of the texts that fits, or with the last one as far as it goes.

    Args:
        width: Its width in pixels.
        texts: What it may say, longest first.

    Returns:
        Shape: (BAR_HEIGHT, width, 3), uint8.
    """
    image = Image.new("RGB", (width, BAR_HEIGHT), _BACKGROUND)
    font = ImageFont.load_default(_TEXT_SIZE)
    text = next((text for text in texts if font.getlength(text) + 4 <= width), texts[-1])
    ImageDraw.Draw(image).text((3, 1), text, font=font, fill=_TEXT)
    return np.asarray(image)


def text_block(width: int, height: int, lines: Sequence[str], *, colour: tuple[int, int, int] = _TEXT) -> np.ndarray:
    """Return lines of text, the first one in a colour. Shape: (height, width, 3), uint8."""
    image = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(_TEXT_SIZE + 1)
    for index, line in enumerate(lines):
        draw.text((6, 4 + 16 * index), line, font=font, fill=colour if index == 0 else _TEXT)
    return np.asarray(image)


def line_chart(
    width: int,
    height: int,
    title: str,
    lines: Sequence[tuple[np.ndarray, tuple[int, int, int]]],
    *,
    colour: tuple[int, int, int] = _TEXT,
) -> np.ndarray:
    """Return lines over the same span, below a title, with the lowest and the highest value at the left.

    Args:
        width: Pixels.
        height: Pixels.
        title: What is drawn.
        lines: Each line's values, finite ones, and its colour; drawn in this order. Shape of the values: (n,), n > 1.
        colour: The title's.

    Returns:
        Shape: (height, width, 3), uint8.
    """
    picture = Image.fromarray(text_block(width, height, [title], colour=colour))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(_TEXT_SIZE)
    low = min(float(np.min(values)) for values, _ in lines)
    high = max(float(np.max(values)) for values, _ in lines)
    left, top, right, bottom = 52, BAR_HEIGHT + 14, width - 8, height - 12
    scale = (bottom - top) / (high - low) if high > low else 0.0
    for value, at in ((high, top), (low, bottom)):
        draw.text((left - 4, at), f"{value:.3f}", font=font, fill=_TEXT, anchor="rm")
    for values, line_colour in lines:
        x = np.linspace(left, right, len(values))
        y = bottom - scale * (np.asarray(values) - low)
        draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=line_colour, width=2)
    return np.asarray(picture)


def write_png(path: Path, picture: np.ndarray) -> None:
    """Write a picture, over one of the same name; it is complete or not there. Shape: (height, width, 3), uint8.

    Raises:
        StorageError: If it cannot be written.
    """
    encoded = BytesIO()
    Image.fromarray(picture).save(encoded, format="PNG")
    write_bytes(path, encoded.getvalue(), overwrite=True)


def write_poster(path: Path, picture: np.ndarray) -> None:
    """Write a small copy of a picture as WebP of at most `POSTER_BYTES`, over one of the same name.

    Raises:
        StorageError: If it cannot be written.
    """
    image = Image.fromarray(picture)
    image.thumbnail((POSTER_SIDE, POSTER_SIDE), Image.Resampling.BILINEAR)
    encoded = _webp(image, quality=75)
    while len(encoded) > POSTER_BYTES:
        # Pictures of a simulation fit at once; noise does not.
        image.thumbnail((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BILINEAR)
        encoded = _webp(image, quality=50)
    write_bytes(path, encoded, overwrite=True)


def thumbnail(frame: np.ndarray, height: int) -> np.ndarray:
    """Return a smaller or larger copy of a frame. Shape: (height, in proportion, 3), uint8."""
    width = max(1, round(frame.shape[1] * height / frame.shape[0]))
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


def _webp(image: Image.Image, *, quality: int) -> bytes:
    encoded = BytesIO()
    image.save(encoded, format="WEBP", quality=quality)
    return encoded.getvalue()
