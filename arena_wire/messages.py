"""Write msgpack messages with arrays, and read them from a peer that may be broken or malicious: checked first.

Nothing is unpickled, and no array is larger than its bytes.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np

_NUMBERS = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_NUMBERS |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
# Kinds whose size is a separate number, with the bytes of that number.
_SIZED = {0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4)}
_SIZED |= {0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4)}
_SIZED |= {0xDC: ("list", 2), 0xDD: ("list", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD4: 0, 0xD5: 0, 0xD6: 0, 0xD7: 0, 0xD8: 0}
_TIMESTAMP = 0xFF
_LONGEST_KEY_BYTES = 64
_MAX_NAME_SHOWN = 50


class WireError(ValueError):
    """A message that violates the protocol."""


@dataclass(frozen=True, kw_only=True)
class WireLimits:
    """How large a message may be at most."""

    max_message_bytes: int = 256 * 1024 * 1024  # in all its frames; 64 env slots with two 640 x 480 cameras take 118 MB
    max_depth: int = 16  # maps and lists inside one another
    max_values: int = 65536  # every number, text, array, list and map, and every key
    max_text_bytes: int = 1024 * 1024  # of all its texts together, which may need four times as much memory


DEFAULT_LIMITS = WireLimits()


def write_message(message: Any, encoded: Callable[[Any], Any]) -> bytes:
    """Return a message as bytes; WireError if it holds something that cannot travel."""
    # `encoded` converts an object that msgpack does not support, or raises TypeError.
    try:
        return msgpack.packb(message, default=encoded) or b""
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the message cannot be sent: {error}") from error


def read_message(data: bytes | bytearray, limits: WireLimits, decoded: Callable[[dict[Any, Any]], Any] = dict) -> Any:
    """Return the message, or one value of it, in the bytes; WireError if it is invalid or too large; see `outline`."""
    # `decoded` returns the object that a map stands for, or the map itself if it is a plain one.
    outline(data, limits)
    try:
        return msgpack.unpackb(data, object_hook=decoded)
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"the message is no msgpack: {error or type(error).__name__}") from error


def in_words(value: object) -> str:
    """Return a short description of a peer's value of any size."""
    if isinstance(value, dict):
        # As text, the bytes of a long key would need four times their memory.
        keys = [key[:_MAX_NAME_SHOWN] if isinstance(key, (str, bytes)) else key for key in list(value)[:3]]
        return f"a map with {len(value)} entries, such as {keys!r:.200}"
    if isinstance(value, (list, tuple, bytes, bytearray, np.ndarray)):
        return f"a {type(value).__name__} of length {len(value) if np.ndim(value) or not np.size(value) else 1}"
    return f"the {type(value).__name__} {str(value)[:100]!r}"


def outline(data: bytes | bytearray, limits: WireLimits) -> Mapping[bytes, tuple[int, int]]:
    """Map each key of the outermost map to the begin and the end of its value; empty if the message is not a map."""
    # WireError if it exceeds the limits, has a type that is not allowed, or is not msgpack. The message is not decoded,
    # so refusing a client costs next to nothing.
    if len(data) > limits.max_message_bytes:
        raise WireError(f"the message has {len(data)} bytes, at most {limits.max_message_bytes} are allowed")
    is_map, inner = False, []
    for depth, kind, begin, content in _values(data, limits):
        is_map = is_map or (depth == 0 and kind == "map")
        if depth == 1 and is_map:
            inner.append((kind, begin, content))
    # A key ends where its value begins, and a value ends where the next key begins.
    keys, values = inner[::2], inner[1::2]
    ends = [begin for _, begin, _ in keys[1:]] + [len(data)]
    return {
        bytes(data[text:begin]): (begin, end)
        for (kind, _, text), (_, begin, _), end in zip(keys, values, ends, strict=False)
        if kind == "text" and begin - text <= _LONGEST_KEY_BYTES
    }


def _values(data: bytes | bytearray, limits: WireLimits) -> Iterator[tuple[int, str, int, int]]:
    """Yield the depth and the kind of each value, where it begins, and where its content begins."""
    position = num_values = num_text_bytes = 0
    # The number of values that the message and each open list and map still lack, innermost last.
    due = [1]
    while due:
        if due[-1] == 0:
            due.pop()
            continue
        due[-1] -= 1
        kind, first, size = _head(data, position)
        num_values += 1
        if num_values > limits.max_values:
            raise WireError(f"the message holds more than {limits.max_values} values")
        num_text_bytes += size if kind == "text" else 0
        if num_text_bytes > limits.max_text_bytes:
            raise WireError(f"the texts of the message have more than {limits.max_text_bytes} bytes")
        if first + size > len(data):
            raise WireError("the message is no msgpack: it ends too early")
        yield len(due) - 1, kind, position, first
        position = first
        if kind not in ("list", "map"):
            position += size
        elif len(due) > limits.max_depth:
            raise WireError(f"the message is nested deeper than {limits.max_depth} maps and lists")
        else:
            due.append(size)
    if position != len(data):
        raise WireError("the message is no msgpack: something stands behind it")


def _head(data: bytes | bytearray, begin: int) -> tuple[str, int, int]:
    """Return a value's kind, where its content begins, and its bytes, or for a list or a map the values in it."""
    if begin >= len(data):
        raise WireError("the message is no msgpack: it ends too early")
    kind, first = data[begin], begin + 1
    if kind <= 0x7F or kind >= 0xE0:
        return "number", first, 0
    if kind <= 0x8F:
        return "map", first, 2 * (kind & 0x0F)
    if kind <= 0x9F:
        return "list", first, kind & 0x0F
    if kind <= 0xBF:
        return "text", first, kind & 0x1F
    if kind in _NUMBERS:
        return "number", first, _NUMBERS[kind]
    if kind in _SIZED:
        what, width = _SIZED[kind]
        size = int.from_bytes(data[first : first + width])
        return what, first + width, 2 * size if what == "map" else size
    if kind in _EXTENSIONS:
        place = first + _EXTENSIONS[kind]
        code = data[place] if place < len(data) else 0
        what = "a timestamp" if code == _TIMESTAMP else f"msgpack's extension type {code}"
        raise WireError(f"{what} may not travel")
    raise WireError(f"the message is no msgpack: no value begins with {kind:#04x}")


# Arrays, as the bytes of ``np.save`` or with their type and shape beside their bytes.

ARRAY_KINDS = "biuf"
"""Kinds of NumPy types that are allowed in messages: booleans, integers and floats."""

_MAX_DIMENSIONS = 32
_MAX_SIZE = 2**48
_LONGEST_TYPE_NAME = 32
_TYPE_NAME = re.compile(r"[<>|=]?[a-zA-Z?]\d{0,9}|[a-z]{3,8}\d{0,3}")
_NPY_MAGIC = b"\x93NUMPY"
_NPY_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
_MAX_NPY_HEADER_BYTES = 1024
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z?]\d{0,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:-?\d{1,19}, ?)*(?:-?\d{1,19})?)\), \} *\n"
)


def array_of(data: object, dtype: np.dtype, shape: object, order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return a writable copy of an array from its bytes; WireError if type, shape or number of bytes is wrong."""
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
    """Return the type of a name such as ``<f4``, which `array_of` may refuse; WireError if no plain type has it."""
    if not isinstance(name, str) or _TYPE_NAME.fullmatch(name) is None:
        raise WireError(f"there is no array of type {short_name(name)}")
    try:
        return np.dtype(name)
    except TypeError as error:
        raise WireError(f"there is no array of type '{name}'") from error


def short_name(value: object) -> str:
    """Return a short name unchanged, and of anything else only its type, because it may be as large as the message."""
    is_name = isinstance(value, (str, bytes)) and len(value) <= _LONGEST_TYPE_NAME
    return repr(value) if is_name else f"that is a {type(value).__name__}"


def read_npy(data: object) -> np.ndarray:
    """Return a writable copy of the array that ``np.save`` wrote; WireError if it is not one of a plain type."""
    # ``np.load`` allocates the size in the header, so the header is read here.
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
