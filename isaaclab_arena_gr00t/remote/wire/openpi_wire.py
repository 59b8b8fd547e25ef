"""Encode and decode the messages of an openpi policy server: msgpack, with arrays as maps with byte keys."""

from typing import Any

import numpy as np

from isaaclab_arena_gr00t.remote.wire.messages import (
    ARRAY_KINDS,
    DEFAULT_LIMITS,
    MessageError,
    MessageLimits,
    array_of,
    in_words,
    read_message,
    write_message,
)

_LONGEST_TYPE_NAME = 16


def pack(message: Any) -> bytes:
    """Return the bytes of a message of dicts, lists, text, numbers and arrays.

    Raises:
        MessageError: If it holds anything else.
    """
    return write_message(message, _encoded)


def unpack(data: bytes | bytearray, limits: MessageLimits = DEFAULT_LIMITS) -> Any:
    """Return the message that the bytes stand for.

    Raises:
        MessageError: If it is larger than allowed, or no such message.
    """
    return read_message(data, _decoded, limits)


def _encoded(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "VOc":
        raise TypeError(f"{value.dtype} may not travel")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _decoded(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        shape = value.get(b"shape")
        if not isinstance(shape, list):
            raise MessageError(f"the shape of an array is a list, this one is {in_words(shape)}")
        return array_of(value.get(b"data"), _dtype(value.get(b"dtype")), shape)
    if b"__npgeneric__" in value:
        return _scalar(value.get(b"data"), _dtype(value.get(b"dtype")))
    return value


def _scalar(value: object, dtype: np.dtype) -> Any:
    if dtype.kind not in ARRAY_KINDS or not isinstance(value, (bool, int, float)):
        raise MessageError(f"a {type(value).__name__} is no number of type {dtype}")
    try:
        return dtype.type(value)
    except (OverflowError, ValueError) as error:
        raise MessageError(f"{value!r:.100} is no number of type {dtype}") from error


def _dtype(name: object) -> np.dtype:
    try:
        if isinstance(name, str) and len(name) <= _LONGEST_TYPE_NAME:
            return np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise MessageError(f"there is no array of type {in_words(name)}") from error
    raise MessageError(f"there is no array of type {in_words(name)}")
