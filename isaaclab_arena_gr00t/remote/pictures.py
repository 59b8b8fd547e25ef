"""Encode and decode pictures in messages of vla-eval: as their bytes, as PNG or as JPEG."""

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from arena_wire.messages import WireError, array_of, dtype_of, in_words

MARK = "__image__"

PictureFormat = Literal["raw", "png", "jpeg"]
"""How pictures travel."""

_FORMATS = {"png": "PNG", "jpeg": "JPEG"}
_MAX_PIXELS = 1 << 24
_CHANNELS = (1, 3, 4)
# vla-eval's quality.
_JPEG_QUALITY = 95


def is_picture(array: np.ndarray) -> bool:
    """Whether an array is a picture: of shape (height, width, channels), uint8, with 1, 3 or 4 channels."""
    return array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in _CHANNELS


def encoded_picture(picture: np.ndarray, picture_format: PictureFormat) -> dict[str, Any]:
    """Return the map of a picture (height, width, channels) uint8; TypeError for 4 channels as JPEG."""
    if picture_format == "jpeg" and picture.shape[2] == 4:
        raise TypeError("a picture with 4 channels as JPEG may not travel")
    file = io.BytesIO()
    plain = picture[:, :, 0] if picture.shape[2] == 1 else picture
    Image.fromarray(plain).save(file, format=_FORMATS[picture_format], quality=_JPEG_QUALITY)
    return {MARK: True, "format": picture_format, "data": file.getvalue(), "shape": list(picture.shape)}


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """A picture as PNG or JPEG that is not decoded yet: a few kB may contain many millions of pixels."""

    form: str  # ``png`` or ``jpeg``
    data: bytes
    shape: tuple[int, int, int]  # height, width and channels, as the sender states them

    def decoded(self) -> np.ndarray:
        """Return the picture (height, width, channels) uint8; WireError if it is damaged or of another shape."""
        height, width, channels = self.shape
        try:
            with Image.open(io.BytesIO(self.data), formats=[_FORMATS[self.form]]) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                size = picture.size
                pixels = np.array(picture) if size == (width, height) else None
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise WireError(f"a picture is no {self.form}, or is damaged") from error
        if pixels is None:
            raise WireError(f"a picture has {size} pixels across and down, it says {(width, height)}")
        pixels = pixels.reshape(height, width, -1)
        if pixels.shape[2] != channels or pixels.dtype != np.uint8:
            raise WireError(f"a picture has {pixels.shape[2]} channels of {pixels.dtype}, it says {channels} of uint8")
        return pixels


def received_picture(value: Mapping[Any, Any]) -> np.ndarray | EncodedPicture:
    """Return the picture in a map with `MARK`: raw as (height, width, channels) uint8; WireError if there is none."""
    form, data, shape = value.get("format"), value.get("data"), value.get("shape")
    if form == "raw":
        return array_of(data, dtype_of(value.get("dtype", "|u1")), shape)
    if form not in _FORMATS or not isinstance(data, bytes):
        raise WireError(f"a picture is raw, png or jpeg, and bytes; this is {in_words(form)} and {in_words(data)}")
    return EncodedPicture(form=str(form), data=data, shape=_checked_shape(shape))


def _checked_shape(shape: object) -> tuple[int, int, int]:
    is_shape = isinstance(shape, list) and len(shape) in (2, 3) and all(type(size) is int for size in shape)
    height, width, channels = (*shape, 1)[:3] if isinstance(shape, list) and is_shape else (0, 0, 0)
    if min(height, width) < 1 or height * width > _MAX_PIXELS or channels not in _CHANNELS:
        raise WireError(f"a picture has height, width and 1, 3 or 4 channels, and at most {_MAX_PIXELS} pixels")
    return height, width, channels
