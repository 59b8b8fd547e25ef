"""Encode and decode the messages between a policy server and its clients: one msgpack map each, with arrays inside.

The messages equal those of NVIDIA's server and client of GR00T N1.6 and N1.7. Both formats of arrays are read, and each
peer gets the format that it writes itself. Messages are checked before they are decoded. Nothing is unpickled, and no
array is larger than its received bytes. A message that is too large or too deep, or that has too many values or other
types, is an error.
"""

import dataclasses
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import msgpack
import numpy as np

from gr00t.data.types import ModalityConfig
from gr00t.errors import Gr00tError
from gr00t.policy.wire.message_check import ContentLimits, outline
from gr00t.policy.wire.npy_header import npy_header
from gr00t.policy.wire.numpy_map import ArrayFormat, NumpyMapError, is_numpy_map, numpy_map, numpy_value

_ARRAY = "__ndarray_class__"
_MODALITY = "__ModalityConfig_class__"
_NEWER_MODALITY = "__ModalityConfig__"
_ARRAY_KINDS = "biuf"
_MAX_DIMENSIONS = 32
_MAX_SIZE = 2**48
_MODALITY_FIELDS = {field.name for field in dataclasses.fields(ModalityConfig)}


class WireError(Gr00tError):
    """A message that violates the protocol."""


@dataclass(frozen=True, kw_only=True)
class WireLimits:
    """How large a message may be at most.

    Attributes:
        max_message_bytes: Bytes of a message in all its frames; a batch of 64 with two 640 x 480 cameras takes 118 MB.
        max_depth: Maps and lists inside one another.
        max_values: Values of the whole message: every number, text, array, list and map, and every key.
        max_text_bytes: Bytes of all its texts together.
    """

    max_message_bytes: int = 256 * 1024 * 1024
    max_depth: int = 16
    max_values: int = 65536
    max_text_bytes: int = 1024 * 1024


DEFAULT_LIMITS = WireLimits()


class Received(NamedTuple):
    """What has come.

    Attributes:
        message: The message; arrays are writable and own their memory.
        arrays: Array format of the sender, None if the message does not show it.
    """

    message: Any
    arrays: ArrayFormat | None


def pack(message: Any, arrays: ArrayFormat = ArrayFormat.NPY) -> bytes:
    """Return the bytes of a message.

    Args:
        message: Dicts, lists, text, bytes, numbers, arrays and `ModalityConfig`, nested in any way.
        arrays: How arrays are written.

    Raises:
        WireError: If it holds anything else.
    """
    try:
        data: bytes | None = msgpack.packb(message, default=partial(_encoded, arrays=arrays))
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the message cannot be sent: {error}") from error
    return data or b""


def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Any:
    """Return the message that the bytes stand for; arrays are writable and own their memory.

    Args:
        data: One message.
        limits: How large it may be.

    Raises:
        WireError: If it is larger than that, no msgpack, or holds an array or a type that may not travel.
    """
    return received(data, limits).message


def received(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Received:
    """Return the message that the bytes stand for, and how its sender writes arrays; see `unpack`."""
    look_through(data, limits)
    reader = _Reader()
    return Received(message=_unpacked(data, reader), arrays=reader.arrays)


def look_through(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Mapping[bytes, tuple[int, int]]:
    """Return where the value of each key of a message begins and ends; nothing if the message is not a map.

    The message is not decoded.

    Raises:
        WireError: If it is larger than allowed, holds a type that may not travel, or is no msgpack.
    """
    if len(data) > limits.max_message_bytes:
        raise WireError(f"the message has {len(data)} bytes, at most {limits.max_message_bytes} are allowed")
    content = ContentLimits(
        max_values=limits.max_values, max_depth=limits.max_depth, max_text_bytes=limits.max_text_bytes
    )
    try:
        return outline(data, content)
    except ValueError as error:
        raise WireError(str(error)) from error


def value_in(data: bytes | bytearray, place: tuple[int, int]) -> Any:
    """Return one value of a message that `look_through` has checked.

    Args:
        data: The message.
        place: Begin and end of the value.

    Raises:
        WireError: If it holds a malformed array or text.
    """
    return _unpacked(data[slice(*place)], _Reader())


def _unpacked(data: bytes | bytearray, reader: "_Reader") -> Any:
    try:
        return msgpack.unpackb(data, object_hook=reader.decoded)
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"the message is no msgpack: {error or type(error).__name__}") from error


def write_array(array: np.ndarray) -> bytes:
    """Return the bytes that ``np.save`` writes for an array in C order, at a quarter of its cost for large images.

    Raises:
        TypeError: If it holds Python objects, text, complex numbers or structures.
    """
    array = np.asarray(array, order="C")
    if array.dtype.kind not in _ARRAY_KINDS:
        raise TypeError(f"an array of {array.dtype} may not travel")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((header.getvalue(), array.data))


def read_array(data: object) -> np.ndarray:
    """Return the array that ``np.save`` wrote.

    Raises:
        WireError: If it is no such file, holds Python objects, text or structures, or its length is not what its
            header says.
    """
    if not isinstance(data, bytes):
        raise WireError(f"an array travels as bytes, this one is a {type(data).__name__}")
    try:
        dtype, shape, is_fortran, size = npy_header(data)
    except ValueError as error:
        raise WireError(f"an array is damaged: {error}") from error
    if dtype.kind not in _ARRAY_KINDS:
        raise WireError(f"an array of {dtype} may not travel; booleans, integers and floats may")
    body = memoryview(data)[size:]
    is_shape = len(shape) <= _MAX_DIMENSIONS and all(0 <= size <= _MAX_SIZE for size in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(body):
        raise WireError(f"an array of shape {shape!r:.100} and type {dtype} came with {len(body)} bytes")
    array = np.frombuffer(body, dtype=dtype)
    return array.reshape(shape, order="F" if is_fortran else "C").copy()


class MsgSerializer:
    """`pack` and `unpack` under the names that NVIDIA's package has."""

    @staticmethod
    def to_bytes(data: Any) -> bytes:
        """Return the bytes of a message; see `pack`."""
        return pack(data)

    @staticmethod
    def from_bytes(data: bytes) -> Any:
        """Return the message that the bytes stand for; see `unpack`."""
        return unpack(data)


def _encoded(value: Any, arrays: ArrayFormat) -> Any:
    if isinstance(value, ModalityConfig):
        # The asking client has sent no array yet, and so has not shown which of the two names it knows.
        return {_MODALITY: True, _NEWER_MODALITY: True, "as_json": _plain(dataclasses.asdict(value))}
    if isinstance(value, np.ndarray):
        return numpy_map(value) if arrays is ArrayFormat.NUMPY_MAP else {_ARRAY: True, "as_npy": write_array(value)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} may not travel")


def _plain(value: Any) -> Any:
    """Return an options object as plain values, with enumerations by name."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.name if isinstance(value, Enum) else value


class _Reader:
    """Decodes maps.

    Attributes:
        arrays: Array format of the sender, as far as its maps have shown it.
    """

    def __init__(self) -> None:
        self.arrays: ArrayFormat | None = None

    def decoded(self, value: dict[Any, Any]) -> Any:
        """Return the object that a map stands for, or the map itself if it is a plain one."""
        if _MODALITY in value or _NEWER_MODALITY in value:
            self._note(ArrayFormat.NPY if _MODALITY in value else ArrayFormat.NUMPY_MAP)
            return _modality_config(value.get("as_json"))
        if _ARRAY in value:
            self._note(ArrayFormat.NPY)
            return read_array(value.get("as_npy"))
        if is_numpy_map(value):
            self._note(ArrayFormat.NUMPY_MAP)
            return _numpy_value(value)
        return value

    def _note(self, arrays: ArrayFormat) -> None:
        """Keep the older format if both were seen, because its sender may know no other."""
        if self.arrays is not ArrayFormat.NPY:
            self.arrays = arrays


def _numpy_value(value: Mapping[Any, Any]) -> np.ndarray | np.generic:
    try:
        return numpy_value(value)
    except NumpyMapError as error:
        raise WireError(str(error)) from error


def _modality_config(fields: object) -> ModalityConfig:
    # Other versions have more fields, which are for training only.
    known = (
        {name: part for name, part in fields.items() if name in _MODALITY_FIELDS} if isinstance(fields, dict) else {}
    )
    indices, keys = known.get("delta_indices"), known.get("modality_keys")
    if isinstance(fields, str):
        raise WireError("a modality came as text, as GR00T N1.5 writes it; N1.6 is the oldest that is understood")
    if not _is_list_of(indices, int) or not _is_list_of(keys, str):
        raise WireError(f"a modality needs lists of delta_indices and modality_keys, got a {type(fields).__name__}")
    return ModalityConfig(**known)


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)
