"""Read msgpack from a server that may be broken or malicious.

The included package ``gr00t`` has the same checks for its own server and client. It is not used here, because NVIDIA's
package of that name has no such checks, and a machine that only asks a server needs neither package.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np

from isaaclab_arena_gr00t.remote.wire.message_check import ContentLimits, outline

ARRAY_KINDS = "biuf"
"""Kinds of NumPy types that are allowed in messages: booleans, integers and floats."""
_MAX_DIMENSIONS = 32
_MAX_SIZE = 2**48
_MAX_NAME_SHOWN = 50


class MessageError(ValueError):
    """A message that is not what the protocol allows."""


@dataclass(frozen=True, kw_only=True)
class MessageLimits:
    """How large a message may be at most.

    Attributes:
        max_bytes: Bytes of a message in all its frames.
        max_depth: Maps and lists inside one another.
        max_values: Values of the whole message: every number, text, array, list and map, and every key.
        max_text_bytes: Bytes of all its texts together.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_depth: int = 16
    max_values: int = 65536
    max_text_bytes: int = 1024 * 1024


DEFAULT_LIMITS = MessageLimits()


def write_message(message: Any, encoded: Callable[[Any], Any]) -> bytes:
    """Return the bytes of a message.

    Args:
        message: What to send.
        encoded: Converts an object that msgpack does not support, or raises TypeError.

    Raises:
        MessageError: If it holds something that cannot travel.
    """
    try:
        data: bytes | None = msgpack.packb(message, default=encoded)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"the message cannot be sent: {error}") from error
    return data or b""


def read_message(data: bytes | bytearray, decoded: Callable[[dict[Any, Any]], Any], limits: MessageLimits) -> Any:
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
    content = ContentLimits(
        max_values=limits.max_values, max_depth=limits.max_depth, max_text_bytes=limits.max_text_bytes
    )
    try:
        outline(data, content)
    except ValueError as error:
        raise MessageError(str(error)) from error
    try:
        return msgpack.unpackb(data, object_hook=decoded)
    except MessageError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise MessageError(f"the message is no msgpack: {error or type(error).__name__}") from error


def in_words(value: object) -> str:
    """Return a short description of a peer's value of any size."""
    if isinstance(value, dict):
        # As text, the bytes of a long key would need four times their memory.
        keys = [key[:_MAX_NAME_SHOWN] if isinstance(key, (str, bytes)) else key for key in list(value)[:3]]
        return f"a map with {len(value)} entries, such as {keys!r:.200}"
    if isinstance(value, (list, tuple, bytes, bytearray, np.ndarray)):
        return f"a {type(value).__name__} of length {len(value) if np.ndim(value) or not np.size(value) else 1}"
    return f"the {type(value).__name__} {str(value)[:100]!r}"


def array_of(data: object, dtype: np.dtype, shape: Sequence[Any], order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return a writable copy of an array from its bytes.

    Raises:
        MessageError: If it is not of booleans, integers or floats, or there are not as many bytes as there should be.
    """
    if dtype.kind not in ARRAY_KINDS:
        raise MessageError(f"an array of {dtype} may not travel; booleans, integers and floats may")
    if not isinstance(data, (bytes, memoryview)):
        raise MessageError(f"an array travels as bytes, this one is a {type(data).__name__}")
    is_shape = len(shape) <= _MAX_DIMENSIONS and all(type(size) is int and 0 <= size <= _MAX_SIZE for size in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(data):
        shown = tuple(size if type(size) is int else type(size) for size in shape[:_MAX_DIMENSIONS])
        raise MessageError(f"an array of shape {shown!r:.100} and type {dtype} came with {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order=order).copy()
