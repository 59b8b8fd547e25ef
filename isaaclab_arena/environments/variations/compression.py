"""Show pictures as they are after JPEG: what quantising loses, in exact arithmetic, without writing any file.

Packing the quantised numbers into bytes loses nothing, so it is left out. Whole numbers below 2**53 are exact as
float64 in any order of summation. So the pixels are the same on every machine and device and beside any other pictures,
and a step takes as many operations for any number of them.
"""

import numpy as np
import torch

NO_COMPRESSION = 100
"""The quality that stands for pictures that are not compressed at all."""

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
    """Return the steps in which JPEG keeps the frequencies of brightness and of colour.

    Args:
        quality: 1 to 100, as programs count that use the tables of the standard.

    Returns:
        Shape: (2, 8, 8), float64 whole numbers.
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = np.array([_LUMINANCE, _CHROMINANCE]).reshape(2, _SIDE, _SIDE)
    return np.clip((base * scale + 50) // 100, 1, 255).astype(np.float64)


def compressed_pictures(pictures: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return pictures as JPEG shows them, with colour at half the resolution, as cameras and datasets have it.

    Args:
        pictures: Shape: (n, height, width, 3), uint8.
        tables: Steps of each picture, of `quantisation_tables`. Shape: (n, 2, 8, 8), float64.
    """
    height, width = pictures.shape[1:3]
    red, green, blue = _padded(pictures).to(torch.int64).unbind(-1)
    brightness = _weighted(red, green, blue, _TO_Y, _HALF)
    # The least bit less than a half, as libjpeg has it, keeps white from becoming 256.
    colours = [_weighted(red, green, blue, to, (128 << 16) + _HALF - 1) for to in (_TO_CB, _TO_CR)]
    brightness = _quantised(brightness, tables[:, 0])
    bluish, reddish = (_upsampled(_quantised(_downsampled(each), tables[:, 1])) - 128 for each in colours)
    shown = torch.stack(
        (
            brightness + ((_CR_TO_RED * reddish + _HALF) >> 16),
            brightness + ((-_CB_TO_GREEN * bluish - _CR_TO_GREEN * reddish + _HALF) >> 16),
            brightness + ((_CB_TO_BLUE * bluish + _HALF) >> 16),
        ),
        dim=-1,
    )
    return shown[:, :height, :width].clamp(0, 255).to(torch.uint8)


def _padded(pictures: torch.Tensor) -> torch.Tensor:
    """Return pictures with whole blocks of colour: their last line and column are repeated."""
    for side in (1, 2):
        length = pictures.shape[side]
        places = torch.arange(-(-length // (2 * _SIDE)) * 2 * _SIDE, device=pictures.device).clamp(max=length - 1)
        pictures = pictures.index_select(side, places)
    return pictures


def _weighted(
    red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor, weights: tuple[int, int, int], more: int
) -> torch.Tensor:
    return (weights[0] * red + weights[1] * green + weights[2] * blue + more) >> 16


def _downsampled(plane: torch.Tensor) -> torch.Tensor:
    """Return means of two by two; halves go down and up in turn. Shapes: (n, h, w) -> (n, h / 2, w / 2)."""
    total = plane[:, ::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, ::2] + plane[:, 1::2, 1::2]
    bias = 1 + torch.arange(total.shape[2], device=plane.device) % 2
    return (total + bias) >> 2


def _upsampled(plane: torch.Tensor) -> torch.Tensor:
    """Return a plane of twice the size, three parts of the nearest and one of the next, along both sides."""
    before, after = _neighbours(plane, 1)
    lines = torch.stack((3 * plane + before, 3 * plane + after), dim=2).flatten(1, 2)
    before, after = _neighbours(lines, 2)
    return torch.stack(((3 * lines + before + 8) >> 4, (3 * lines + after + 7) >> 4), dim=3).flatten(2, 3)


def _neighbours(plane: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands before and after each place along a side; at an end it stands for itself."""
    length = plane.shape[side]
    places = torch.arange(length, device=plane.device)
    before, after = (places - 1).clamp(min=0), (places + 1).clamp(max=length - 1)
    return plane.index_select(side, before), plane.index_select(side, after)


def _quantised(plane: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return a plane of which each frequency of a block is a whole number of steps.

    Args:
        plane: Shape: (n, height, width), int64, 0 to 255.
        steps: Shape: (n, 8, 8), float64.
    """
    num, height, width = plane.shape
    blocks = plane.reshape(num, height // _SIDE, _SIDE, width // _SIDE, _SIDE).transpose(2, 3).to(torch.float64) - 128.0
    cosines = torch.from_numpy(_cosines()).to(plane.device)
    steps = steps[:, None, None]
    kept = (cosines @ blocks @ cosines.T / (4.0**_BITS * steps)).round() * steps
    back = ((cosines.T @ kept @ cosines) / 4.0**_BITS).round() + 128.0
    return back.clamp(0, 255).to(torch.int64).transpose(2, 3).reshape(num, height, width)


def _cosines() -> np.ndarray:
    """Return the matrix of the cosine transform of 8 numbers, times 2**13, rounded. Shape: (8, 8)."""
    frequency, place = np.arange(_SIDE)[:, None], np.arange(_SIDE)[None]
    scale = np.where(frequency == 0, np.sqrt(1 / _SIDE), np.sqrt(2 / _SIDE))
    return np.rint(2**_BITS * scale * np.cos((2 * place + 1) * frequency * np.pi / (2 * _SIDE)))
