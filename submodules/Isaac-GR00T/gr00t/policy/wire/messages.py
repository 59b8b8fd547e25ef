"""Write msgpack messages, and read them from a peer that may be broken or malicious: checked before decoding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np

_NUMBERS = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_NUMBERS |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD4: 0, 0xD5: 0, 0xD6: 0, 0xD7: 0, 0xD8: 0}
_TIMESTAMP = 0xFF
_LONGEST_NAME_BYTES = 64
_MAX_NAME_SHOWN = 50


class WireError(ValueError):
    """A message that violates the protocol."""


@dataclass(frozen=True, kw_only=True)
class WireLimits:
    """How large a message may be at most.

    Attributes:
        max_message_bytes: Bytes of a message in all its frames; a batch of 64 with two 640 x 480 cameras takes 118 MB.
        max_depth: Maps and lists inside one another.
        max_values: Number of values of the whole message: every number, text, array, list and map, and every key.
        max_text_bytes: Bytes of all its texts together, which may need four times as much memory.
    """

    max_message_bytes: int = 256 * 1024 * 1024
    max_depth: int = 16
    max_values: int = 65536
    max_text_bytes: int = 1024 * 1024


DEFAULT_LIMITS = WireLimits()


def write_message(message: Any, encoded: Callable[[Any], Any]) -> bytes:
    """Return the bytes of a message.

    Args:
        message: What to send.
        encoded: Converts an object that msgpack does not support, or raises TypeError.

    Raises:
        WireError: If it holds something that cannot travel.
    """
    try:
        data: bytes | None = msgpack.packb(message, default=encoded)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the message cannot be sent: {error}") from error
    return data or b""


def read_message(data: bytes | bytearray, decoded: Callable[[dict[Any, Any]], Any]) -> Any:
    """Return the message that the bytes stand for, which `outline` has checked.

    Args:
        data: One message, or one value of it.
        decoded: Returns the object that a map stands for, or the map itself if it is a plain one.

    Raises:
        WireError: If it holds a malformed array or text.
    """
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


class _Value(NamedTuple):
    """The first bytes of a value.

    Attributes:
        end: Position of its end in the message; for a list or a map, of its first entry.
        num_parts: Number of values in it, keys included; None if it is not a list or a map.
        text_begins: Position of its text, -1 if it is not a text.
        is_map: Whether it is a map.
    """

    end: int
    num_parts: int | None = None
    text_begins: int = -1
    is_map: bool = False


def outline(data: bytes | bytearray, limits: WireLimits) -> Mapping[bytes, tuple[int, int]]:
    """Map each key of the outermost map to the begin and the end of its value; empty if the message is not a map.

    The message is not decoded, so refusing a client costs next to nothing.

    Args:
        data: One message.
        limits: How large it may be.

    Raises:
        WireError: If it exceeds the limits, has a type that is not allowed, or is not msgpack.
    """
    if len(data) > limits.max_message_bytes:
        raise WireError(f"the message has {len(data)} bytes, at most {limits.max_message_bytes} are allowed")
    walk = _Walk(data, limits)
    entries: dict[bytes, tuple[int, int]] = {}
    outermost = walk.enter()
    for _ in range((outermost.num_parts or 0) // 2 if outermost.is_map else 0):
        key = walk.skip()
        begin = walk.position
        walk.skip()
        if key.text_begins >= 0 and key.end - key.text_begins <= _LONGEST_NAME_BYTES:
            entries[bytes(data[key.text_begins : key.end])] = (begin, walk.position)
    for _ in range(0 if outermost.is_map else outermost.num_parts or 0):
        walk.skip()
    walk.check_end()
    return entries


class _Walk:
    """Walks through a message, value by value, and counts.

    Attributes:
        position: Position of the next value.
    """

    def __init__(self, data: bytes | bytearray, limits: WireLimits) -> None:
        self.position = 0
        self._data = data
        self._limits = limits
        self._num_values = 0
        self._num_text_bytes = 0
        # This holds the number of values that each open list and map still lacks, innermost last.
        self._due: list[int] = []

    def enter(self) -> _Value:
        """Read the next value; of a list or a map, only its length."""
        value = _value_at(self._data, self.position)
        self._num_values += 1
        if self._num_values > self._limits.max_values:
            raise WireError(f"the message holds more than {self._limits.max_values} values")
        if value.text_begins >= 0:
            self._num_text_bytes += value.end - value.text_begins
            if self._num_text_bytes > self._limits.max_text_bytes:
                raise WireError(f"the texts of the message have more than {self._limits.max_text_bytes} bytes")
        if value.end + (value.num_parts or 0) > len(self._data):
            raise WireError("the message is no msgpack: it ends too early")
        if value.num_parts is not None:
            if len(self._due) == self._limits.max_depth:
                raise WireError(f"the message is nested deeper than {self._limits.max_depth} maps and lists")
            self._due.append(value.num_parts)
        self.position = value.end
        return value

    def skip(self) -> _Value:
        """Skip the next value with all its content, and return its position."""
        level = len(self._due)
        first = self.enter()
        while len(self._due) > level:
            if self._due[-1] == 0:
                self._due.pop()
            else:
                self._due[-1] -= 1
                self.enter()
        return first

    def check_end(self) -> None:
        """Refuse a message with further bytes after it."""
        if self.position != len(self._data):
            raise WireError("the message is no msgpack: something stands behind it")


def _value_at(data: bytes | bytearray, begin: int) -> _Value:
    if begin >= len(data):
        raise WireError("the message is no msgpack: it ends too early")
    kind, first = data[begin], begin + 1
    if kind <= 0x7F or kind >= 0xE0:
        return _Value(end=first)
    if kind <= 0x8F:
        return _Value(end=first, num_parts=2 * (kind & 0x0F), is_map=True)
    if kind <= 0x9F:
        return _Value(end=first, num_parts=kind & 0x0F)
    if kind <= 0xBF:
        return _Value(end=first + (kind & 0x1F), text_begins=first)
    if kind in _NUMBERS:
        return _Value(end=first + _NUMBERS[kind])
    return _long_value_at(data, kind, first)


def _long_value_at(data: bytes | bytearray, kind: int, first: int) -> _Value:
    """Return a value whose size is a separate number."""
    for kinds in (_BYTES, _TEXTS, _LISTS, _MAPS):
        if kind in kinds:
            begin = first + kinds[kind]
            size = int.from_bytes(data[first:begin])
            if kinds is _BYTES:
                return _Value(end=begin + size)
            if kinds is _TEXTS:
                return _Value(end=begin + size, text_begins=begin)
            return _Value(end=begin, num_parts=size if kinds is _LISTS else 2 * size, is_map=kinds is _MAPS)
    if kind in _EXTENSIONS:
        place = first + _EXTENSIONS[kind]
        code = data[place] if place < len(data) else 0
        what = "a timestamp" if code == _TIMESTAMP else f"msgpack's extension type {code}"
        raise WireError(f"{what} may not travel")
    raise WireError(f"the message is no msgpack: no value begins with {kind:#04x}")
