"""Reading msgpack from a server that may be broken, or may not be what it seems.

The package ``gr00t`` reads the same messages, with the same care, for its own server and client. Nothing of it is used
here: NVIDIA's package under that name does without the care, and a machine that only asks need not have either.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np

ARRAY_KINDS = "biuf"
"""Kinds of numpy types that may travel: booleans, integers and floats."""


class MessageError(ValueError):
    """A message that is not what the protocol allows."""


@dataclass(frozen=True, kw_only=True)
class MessageLimits:
    """How large a message may be at most.

    Attributes:
        max_bytes: Bytes of a message.
        max_depth: Maps and lists inside one another.
        max_items: Entries of one map or list.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_depth: int = 16
    max_items: int = 16384


DEFAULT_LIMITS = MessageLimits()


def write_message(message: Any, encoded: Callable[[Any], Any]) -> bytes:
    """Return the bytes of a message.

    Args:
        message: What to send.
        encoded: Returns what stands for an object that msgpack has no form for, or raises TypeError.

    Raises:
        MessageError: If it holds something that cannot travel.
    """
    try:
        data: bytes | None = msgpack.packb(message, default=encoded)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"the message cannot be sent: {error}") from error
    return data or b""


def read_message(data: bytes, decoded: Callable[[dict[Any, Any]], Any], limits: MessageLimits) -> Any:
    """Return the message that the bytes stand for.

    Args:
        data: One message.
        decoded: Returns what a map stands for, the map itself where it is one.
        limits: How large the message may be.

    Raises:
        MessageError: If it is larger than that, or no such message.
    """
    if len(data) > limits.max_bytes:
        raise MessageError(f"the message has {len(data)} bytes, at most {limits.max_bytes} are allowed")
    try:
        message = msgpack.unpackb(
            data,
            object_hook=decoded,
            ext_hook=_refused,
            max_array_len=limits.max_items,
            max_map_len=limits.max_items,
        )
    except MessageError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise MessageError(f"the message is no msgpack: {error or type(error).__name__}") from error
    _check_depth(message, limits.max_depth)
    return message


def array_of(data: object, dtype: np.dtype, shape: Sequence[Any], order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return an array from its bytes, writable and in memory of its own.

    Raises:
        MessageError: If it is not of booleans, integers or floats, or there are not as many bytes as there should be.
    """
    if dtype.kind not in ARRAY_KINDS:
        raise MessageError(f"an array of {dtype} may not travel; booleans, integers and floats may")
    if not isinstance(data, (bytes, memoryview)):
        raise MessageError(f"an array travels as bytes, this one is a {type(data).__name__}")
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise MessageError(f"an array of shape {tuple(shape)} and type {dtype} came with {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order=order).copy()


def _refused(code: int, data: bytes) -> Any:
    del data
    raise MessageError(f"msgpack's extension type {code} may not travel")


def _check_depth(message: object, max_depth: int) -> None:
    level: list[object] = [message]
    for _ in range(max_depth + 1):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
    raise MessageError(f"the message is nested deeper than {max_depth} maps and lists")


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, msgpack.Timestamp):
        raise MessageError("a timestamp may not travel")
