"""Define the two formats of arrays in messages, and encode the newer one, msgpack_numpy's map with byte keys.

That package unpickles arrays of objects. Here nothing is unpickled, and no array is larger than its bytes.
"""

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

_KINDS = "biuf"
_TYPE_NAME = re.compile(r"[<>|=]?[a-zA-Z?]\d{0,9}")
_MAX_DIMENSIONS = 32
_MAX_SIZE = 2**48
_LONGEST_NAME = 32


class NumpyMapError(ValueError):
    """A map that does not stand for an allowed array or number."""


class ArrayFormat(Enum):
    """The format of arrays in messages.

    Attributes:
        NPY: As the bytes of ``np.save``, which GR00T N1.6 writes and N1.7 still reads.
        NUMPY_MAP: As the map of msgpack_numpy, which GR00T N1.7 writes.
    """

    NPY = "npy"
    NUMPY_MAP = "numpy_map"


def numpy_map(array: np.ndarray) -> dict[bytes, Any]:
    """Return the map that stands for an array in C order.

    Raises:
        TypeError: If it holds Python objects, text, complex numbers or structures.
    """
    array = np.asarray(array, order="C")
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype} may not travel")
    return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.data}


def is_numpy_map(value: Mapping[Any, Any]) -> bool:
    """Whether a map stands for an array, or for a single number that has a type of numpy's or is complex."""
    return b"nd" in value or b"complex" in value


def numpy_value(value: Mapping[Any, Any]) -> np.ndarray | np.generic:
    """Return the writable copy of an array, or the NumPy number, that a map stands for.

    Args:
        value: A map of which `is_numpy_map` is true.

    Raises:
        NumpyMapError: If it stands for Python objects, text, complex numbers or structures, or has another number of
            bytes than its header states.
    """
    if b"complex" in value:
        raise NumpyMapError("a complex number may not travel")
    dtype, data = _dtype(value), value.get(b"data")
    if not isinstance(data, bytes):
        raise NumpyMapError(f"an array travels as bytes, this one is a {type(data).__name__}")
    is_array = value[b"nd"]
    if not isinstance(is_array, bool):
        raise NumpyMapError(f"whether a value is an array is true or false, not a {type(is_array).__name__}")
    shape = value.get(b"shape") if is_array else []
    if not isinstance(shape, list) or any(type(size) is not int for size in shape):
        raise NumpyMapError("the shape of an array is a list of whole numbers, this one is not")
    is_shape = len(shape) <= _MAX_DIMENSIONS and all(0 <= size <= _MAX_SIZE for size in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(data):
        shown = f"{tuple(shape[:_MAX_DIMENSIONS])!r:.100}"
        raise NumpyMapError(f"an array of shape {shown} and type {dtype} came with {len(data)} bytes")
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    return array.copy() if is_array else array[()]


def _dtype(value: Mapping[Any, Any]) -> np.dtype:
    kind, name = value.get(b"kind", b""), value.get(b"type")
    if kind != b"":
        raise NumpyMapError(f"an array of kind {_in_words(kind)} may not travel")
    if not isinstance(name, str) or _TYPE_NAME.fullmatch(name) is None:
        raise NumpyMapError(f"there is no array of type {_in_words(name)}")
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise NumpyMapError(f"there is no array of type '{name}'") from error
    if dtype.kind not in _KINDS:
        raise NumpyMapError(f"an array of {dtype} may not travel; booleans, integers and floats may")
    return dtype


def _in_words(value: object) -> str:
    """Return a short name unchanged, and of anything else only its type, because it may be as large as the message."""
    is_name = isinstance(value, (str, bytes)) and len(value) <= _LONGEST_NAME
    return repr(value) if is_name else f"that is a {type(value).__name__}"
