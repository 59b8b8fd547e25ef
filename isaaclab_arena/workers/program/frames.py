"""Messages between this program and a worker: a JSON header and raw arrays. Nothing is ever unpickled.

A frame: four bytes of magic, the length of the header, the header, the bytes of each array in the header's order.
"""

from __future__ import annotations

import json
import struct
import typing

import numpy as np

MAGIC = b"ARN1"
MAX_HEADER_BYTES = 1 << 24
MAX_ARRAYS_BYTES = 1 << 30

NUMBER = struct.Struct("<I")
"""Stands before each frame between a program and its worker: the number of the request, which its answer repeats."""

_PREFIX = struct.Struct("<4sI")
_KINDS = frozenset("biuf")


class FrameError(Exception):
    """The received bytes are not a frame."""


def _prefix_of(header: bytes) -> bytes:
    return _PREFIX.pack(MAGIC, len(header))


_NOTHING = json.dumps({"message": {}, "arrays": []}).encode()

EMPTY = _prefix_of(_NOTHING) + _NOTHING
"""The frame that says nothing, which needs neither be written nor read as JSON."""


def encode(message: typing.Mapping[str, typing.Any], arrays: typing.Mapping[str, np.ndarray]) -> bytes:
    """Return a frame with a message of plain JSON values and numeric arrays."""
    if not message and not arrays:
        return EMPTY
    layout, blobs = [], []
    for name, array in arrays.items():
        plain = np.asarray(array)
        if plain.dtype.kind not in _KINDS:
            raise FrameError(f"array '{name}' holds {plain.dtype}, and only numbers travel")
        layout.append([name, plain.dtype.newbyteorder("<").str, list(plain.shape)])
        blobs.append(plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes())
    header = json.dumps({"message": message, "arrays": layout}).encode()
    return b"".join([_prefix_of(header), header, *blobs])


def decode(
    read_exactly: typing.Callable[[int], bytes | bytearray],
) -> tuple[dict[str, typing.Any], dict[str, np.ndarray]]:
    """Read the next frame's message and arrays; FrameError if it is no frame or too large."""
    magic, size = _PREFIX.unpack(read_exactly(_PREFIX.size))
    if magic != MAGIC or size > MAX_HEADER_BYTES:
        raise FrameError(f"the pipe holds {magic!r} where a frame should begin")
    written = read_exactly(size)
    # An empty frame is recognised by its bytes, without the JSON parser.
    if written == _NOTHING:
        return {}, {}
    try:
        header = json.loads(written)
    except RecursionError as error:
        raise FrameError("the header of a frame is nested too deeply") from error
    # Check every size before the read: a damaged header must not reserve memory.
    arrays, total = {}, 0
    for name, dtype_name, shape in header["arrays"]:
        dtype = np.dtype(dtype_name)
        if dtype.kind not in _KINDS or any(type(length) is not int or length < 0 for length in shape):
            raise FrameError(f"array '{name}' claims to be {dtype_name} of shape {shape}")
        num_bytes = dtype.itemsize
        for length in shape:
            num_bytes *= length
        total += num_bytes
        if total > MAX_ARRAYS_BYTES:
            raise FrameError(f"array '{name}' brings the frame to {total} bytes; {MAX_ARRAYS_BYTES} are allowed")
        arrays[name] = np.frombuffer(read_exactly(num_bytes), dtype).reshape(shape)
    return header["message"], arrays
