"""Encode and decode arrays in messages: as the bytes of ``np.save``, or as msgpack_numpy's map with byte keys.

That package unpickles arrays of objects. Here nothing is unpickled, and no array is larger than its bytes.
"""

import io
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import numpy as np

from gr00t.policy.wire.messages import WireError

ARRAY_KINDS = "biuf"
"""Kinds of NumPy types that are allowed in messages: booleans, integers and floats."""

_MAX_DIMENSIONS = 32
_MAX_SIZE = 2**48
_LONGEST_NAME = 32
_TYPE_NAME = re.compile(r"[<>|=]?[a-zA-Z?]\d{0,9}|[a-z]{3,8}\d{0,3}")
_NPY_MAGIC = b"\x93NUMPY"
_NPY_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
_MAX_NPY_HEADER_BYTES = 1024
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z?]\d{0,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:-?\d{1,19}, ?)*(?:-?\d{1,19})?)\), \} *\n"
)


class ArrayFormat(Enum):
    """The format of arrays in messages.

    Attributes:
        NPY: As the bytes of ``np.save``, which GR00T N1.6 writes and N1.7 still reads.
        NUMPY_MAP: As the map of msgpack_numpy, which GR00T N1.7 writes.
    """

    NPY = "npy"
    NUMPY_MAP = "numpy_map"


def array_of(data: object, dtype: np.dtype, shape: object, order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return a writable copy of an array from its bytes.

    Raises:
        WireError: If it is not of booleans, integers or floats, its shape is invalid, or its number of bytes is wrong.
    """
    if dtype.kind not in ARRAY_KINDS:
        raise WireError(f"an array of {dtype} may not travel; booleans, integers and floats may")
    if not isinstance(data, (bytes, memoryview)):
        raise WireError(f"an array travels as bytes, this one is a {type(data).__name__}")
    if not isinstance(shape, (list, tuple)) or any(type(size) is not int for size in shape):
        raise WireError("the shape of an array is a list of whole numbers, this one is not")
    is_shape = len(shape) <= _MAX_DIMENSIONS and all(0 <= size <= _MAX_SIZE for size in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(data):
        shown = f"{tuple(shape[:_MAX_DIMENSIONS])!r:.100}"
        raise WireError(f"an array of shape {shown} and type {dtype} came with {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order=order).copy()


def dtype_of(name: object) -> np.dtype:
    """Return the type of a name such as ``<f4``; `array_of` checks whether an array of it is allowed.

    Raises:
        WireError: If there is no type of that name, or it is a structure.
    """
    if not isinstance(name, str) or _TYPE_NAME.fullmatch(name) is None:
        raise WireError(f"there is no array of type {_in_words(name)}")
    try:
        return np.dtype(name)
    except TypeError as error:
        raise WireError(f"there is no array of type '{name}'") from error


def write_npy(array: np.ndarray) -> bytes:
    """Return the bytes that ``np.save`` writes for an array in C order, at a quarter of its cost for large images.

    Raises:
        TypeError: If it holds Python objects, text, complex numbers or structures.
    """
    array = _in_c_order(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((header.getvalue(), array.data))


def read_npy(data: object) -> np.ndarray:
    """Return a writable copy of the array that ``np.save`` wrote.

    It does without ``np.load``, which allocates the size in the header.

    Raises:
        WireError: If the header is not one of ``np.save`` for a plain type, or `array_of` refuses the array.
    """
    if not isinstance(data, bytes):
        raise WireError(f"an array travels as bytes, this one is a {type(data).__name__}")
    length_bytes = _NPY_LENGTH_BYTES.get(data[6:8])
    if not data.startswith(_NPY_MAGIC) or length_bytes is None:
        raise WireError("an array is damaged: it does not begin as np.save begins")
    begin = 8 + length_bytes
    length = int.from_bytes(data[8:begin], "little")
    if length > _MAX_NPY_HEADER_BYTES:
        raise WireError(
            f"an array is damaged: its header has {length} bytes, at most {_MAX_NPY_HEADER_BYTES} are allowed"
        )
    found = _NPY_HEADER.fullmatch(data[begin : begin + length])
    if found is None:
        raise WireError("an array is damaged: its header is not one that np.save writes for numbers")
    descr, order, sizes = (group.decode("ascii") for group in found.groups())
    shape = [int(size) for size in sizes.replace(" ", "").split(",") if size]
    return array_of(memoryview(data)[begin + length :], dtype_of(descr), shape, "F" if order == "True" else "C")


def numpy_map(array: np.ndarray) -> dict[bytes, Any]:
    """Return the map of msgpack_numpy that stands for an array in C order.

    Raises:
        TypeError: If it holds Python objects, text, complex numbers or structures.
    """
    array = _in_c_order(array)
    return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.data}


def is_numpy_map(value: Mapping[Any, Any]) -> bool:
    """Whether a map stands for an array, or for a single number that has a type of numpy's or is complex."""
    return b"nd" in value or b"complex" in value


def numpy_value(value: Mapping[Any, Any]) -> np.ndarray | np.generic:
    """Return the writable copy of an array, or the NumPy number, that a map stands for.

    Args:
        value: A map of which `is_numpy_map` is true.

    Raises:
        WireError: If it stands for a complex number or Python objects, or `array_of` refuses the array.
    """
    if b"complex" in value:
        raise WireError("a complex number may not travel")
    kind, is_array = value.get(b"kind", b""), value[b"nd"]
    if kind != b"":
        raise WireError(f"an array of kind {_in_words(kind)} may not travel")
    if not isinstance(is_array, bool):
        raise WireError(f"whether a value is an array is true or false, not a {type(is_array).__name__}")
    array = array_of(value.get(b"data"), dtype_of(value.get(b"type")), value.get(b"shape") if is_array else [])
    return array if is_array else array[()]


def _in_c_order(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")
    if array.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"an array of {array.dtype} may not travel")
    return array


def _in_words(value: object) -> str:
    """Return a short name unchanged, and of anything else only its type, because it may be as large as the message."""
    is_name = isinstance(value, (str, bytes)) and len(value) <= _LONGEST_NAME
    return repr(value) if is_name else f"that is a {type(value).__name__}"
