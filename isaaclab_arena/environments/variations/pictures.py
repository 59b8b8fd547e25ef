"""Pictures as they are after compression, another exposure, blur, and from a camera that moved or is half covered."""

import math
from collections.abc import Sequence

import numpy as np
import torch

# Show pictures as they are after JPEG: the loss of quantisation, in exact arithmetic, without a file.
#
# Packing the quantised numbers into bytes loses nothing, so it is left out. Whole numbers below 2**53 are exact as
# float64 in any order of summation. So the pixels are the same on every machine and device and beside any other
# pictures, and the number of operations of a step does not depend on the number of pictures.

_SIDE = 8
_BITS = 13
_LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29),
    *(51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121),
    *(120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99),
    *(99, 99, 99, 99, *(99,) * 32),
)
_HALF = 1 << 15
_TO_Y = (19595, 38470, 7471)
_TO_CB = (-11059, -21709, 32768)
_TO_CR = (32768, -27439, -5329)
_CR_TO_RED, _CB_TO_GREEN, _CR_TO_GREEN, _CB_TO_BLUE = 91881, 22554, 46802, 116130


def quantisation_tables(quality: int) -> np.ndarray:
    """Return JPEG's quantisation steps of luminance and chrominance. Shape: (2, 8, 8), float64 whole numbers."""
    # The quality, 1 to 100, scales the standard's tables as libjpeg does.
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = np.array([_LUMINANCE, _CHROMINANCE]).reshape(2, _SIDE, _SIDE)
    return np.clip((base * scale + 50) // 100, 1, 255).astype(np.float64)


def compressed_pictures(pictures: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return pictures (n, height, width, 3), uint8, after JPEG with ``tables`` (n, 2, 8, 8), float64."""
    height, width = pictures.shape[1:3]
    # Whole blocks of colour are needed, so the last line and column repeat.
    for side in (1, 2):
        length = pictures.shape[side]
        places = torch.arange(-(-length // (2 * _SIDE)) * 2 * _SIDE, device=pictures.device).clamp(max=length - 1)
        pictures = pictures.index_select(side, places)
    red, green, blue = pictures.to(torch.int64).unbind(-1)
    # One bit less than a half, as in libjpeg, keeps white from becoming 256.
    middle = (128 << 16) + _HALF - 1
    luminance, *chrominance = (
        (weights[0] * red + weights[1] * green + weights[2] * blue + more) >> 16
        for weights, more in ((_TO_Y, _HALF), (_TO_CB, middle), (_TO_CR, middle))
    )
    brightness = _quantised(luminance, tables[:, 0])

    # Colour has half the resolution, as in cameras and datasets.
    colours = []
    for plane in chrominance:
        # Means of 2 x 2 pixels round halves down and up in turn.
        total = plane[:, ::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, ::2] + plane[:, 1::2, 1::2]
        bias = 1 + torch.arange(total.shape[2], device=plane.device) % 2
        colour = _quantised((total + bias) >> 2, tables[:, 1])
        # Twice the size: three parts of the nearest and one of the next pixel, along both sides. An edge pixel is its
        # own neighbour. The sums are rounded after the second side.
        for side, more, shift in ((1, (0, 0), 0), (2, (8, 7), 4)):
            places = torch.arange(colour.shape[side], device=colour.device)
            before = colour.index_select(side, (places - 1).clamp(min=0))
            after = colour.index_select(side, (places + 1).clamp(max=colour.shape[side] - 1))
            both = (3 * colour + before + more[0]) >> shift, (3 * colour + after + more[1]) >> shift
            colour = torch.stack(both, dim=side + 1).flatten(side, side + 1)
        colours.append(colour - 128)

    bluish, reddish = colours
    shown = torch.stack(
        (
            brightness + ((_CR_TO_RED * reddish + _HALF) >> 16),
            brightness + ((-_CB_TO_GREEN * bluish - _CR_TO_GREEN * reddish + _HALF) >> 16),
            brightness + ((_CB_TO_BLUE * bluish + _HALF) >> 16),
        ),
        dim=-1,
    )
    return shown[:, :height, :width].clamp(0, 255).to(torch.uint8)


def _quantised(plane: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Round each frequency of 8 x 8 blocks of a plane (n, height, width), int64, to ``steps`` (n, 8, 8)."""
    # The matrix of the cosine transform of 8 numbers, times 2**13, rounded.
    frequency, place = np.arange(_SIDE)[:, None], np.arange(_SIDE)[None]
    scale = np.where(frequency == 0, np.sqrt(1 / _SIDE), np.sqrt(2 / _SIDE))
    rounded = np.rint(2**_BITS * scale * np.cos((2 * place + 1) * frequency * np.pi / (2 * _SIDE)))
    cosines = torch.from_numpy(rounded).to(plane.device)

    num, height, width = plane.shape
    blocks = plane.reshape(num, height // _SIDE, _SIDE, width // _SIDE, _SIDE).transpose(2, 3).to(torch.float64) - 128.0
    steps = steps[:, None, None]
    kept = (cosines @ blocks @ cosines.T / (4.0**_BITS * steps)).round() * steps
    back = ((cosines.T @ kept @ cosines) / 4.0**_BITS).round() + 128.0
    return back.clamp(0, 255).to(torch.int64).transpose(2, 3).reshape(num, height, width)


# Tone, blur and geometry.

_GAMMA = 2.2


def tone_table(stops: float, contrast: float, brightness: float) -> np.ndarray:
    """Return each of 256 values under 2**stops times the light, spread by a contrast, times a brightness; uint8."""
    values = np.arange(256, dtype=np.float64)
    if stops != 0.0:
        light = (values / 255.0) ** _GAMMA * 2.0**stops
        values = np.rint(255.0 * np.minimum(light, 1.0) ** (1.0 / _GAMMA))
    spread = np.rint(np.clip(127.5 + contrast * (values - 127.5), 0.0, 255.0))
    return np.rint(np.minimum(brightness * spread, 255.0)).astype(np.uint8)


def blurred_pictures(pictures: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Blur pictures (n, height, width, channels), uint8, along both sides by weights (n, 2 * radius + 1)."""
    blurred = pictures.to(torch.float32)
    for side in (1, 2):
        length, reach = blurred.shape[side], weights.shape[1] // 2
        # A fixed order of sums gives the same bits for any number of pictures; a convolution might not.
        total = torch.zeros_like(blurred)
        for away in range(-reach, reach + 1):
            # Edge pixels repeat beyond the edge.
            places = torch.arange(length, device=blurred.device).add(away).clamp(0, length - 1)
            total = total + weights[:, away + reach].reshape(-1, 1, 1, 1) * blurred.index_select(side, places)
        blurred = total
    return blurred.round().clamp(0, 255).to(torch.uint8)


def seen_from(
    height: int, width: int, *, shift: Sequence[float], turn: float, occlusion: float, place: Sequence[float]
) -> np.ndarray:
    """Return the pixel that each pixel shows after a shift, a turn and an occlusion. Shape: (height * width,), int64.

    Args:
        height: Height of the pictures [pixels].
        width: Width of the pictures [pixels].
        shift: How far they move right and down, as shares of their size.
        turn: How far they turn clockwise about their middle [rad].
        occlusion: Share of the picture behind a rectangle of its proportions, which shows pixel ``height * width``.
        place: Where that stands between left and right, and between top and bottom, 0 to 1.
    """
    # Whole numbers, in half pixels from the middle, so that the pixels are the same on every machine.
    y, x = np.mgrid[:height, :width].astype(np.int64)
    across = 2 * x - (width - 1) - 2 * round(shift[0] * width)
    down = 2 * y - (height - 1) - 2 * round(shift[1] * height)
    cosine, sine = round(math.cos(turn) * 2**16), round(math.sin(turn) * 2**16)
    from_x = (cosine * across + sine * down + width * 2**16) >> 17
    from_y = (cosine * down - sine * across + height * 2**16) >> 17
    # Edge pixels repeat beyond the edge.
    shown = np.clip(from_y, 0, height - 1) * width + np.clip(from_x, 0, width - 1)
    tall, wide = (round(math.sqrt(occlusion) * length) for length in (height, width))
    top, left = round(place[1] * (height - tall)), round(place[0] * (width - wide))
    shown[top : top + tall, left : left + wide] = height * width
    return shown.reshape(-1)
