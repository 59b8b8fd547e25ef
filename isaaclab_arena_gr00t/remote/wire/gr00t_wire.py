"""Encode and decode the messages of GR00T policy servers: NVIDIA's of N1.6 and N1.7, and the included one."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from isaaclab_arena_gr00t.remote.wire.npy_header import npy_header
from isaaclab_arena_gr00t.remote.wire.numpy_map import ArrayFormat, NumpyMapError, is_numpy_map, numpy_map, numpy_value

_ARRAY = "__ndarray_class__"
_MODALITY = "__ModalityConfig_class__"
_NEWER_MODALITY = "__ModalityConfig__"


@dataclass(frozen=True, kw_only=True)
class RemoteModality:
    """One modality of a served model's inputs or outputs; further values of the server are ignored.

    Attributes:
        delta_indices: Steps relative to the present one.
        modality_keys: Names, in order.
    """

    delta_indices: tuple[int, ...]
    modality_keys: tuple[str, ...]


class Received(NamedTuple):
    """What has come.

    Attributes:
        message: The message, with arrays and `RemoteModality` in it.
        arrays: Array format of the sender, None if the message does not show it.
    """

    message: Any
    arrays: ArrayFormat | None


def pack(message: Any, arrays: ArrayFormat = ArrayFormat.NPY) -> bytes:
    """Return the bytes of a message of dicts, lists, text, numbers and arrays.

    Args:
        message: What to send.
        arrays: How arrays are written.

    Raises:
        MessageError: If it holds anything else.
    """
    return write_message(message, partial(_encoded, arrays=arrays))


def unpack(data: bytes | bytearray, limits: MessageLimits = DEFAULT_LIMITS) -> Any:
    """Return the message that the bytes stand for, with arrays and `RemoteModality` in it.

    Raises:
        MessageError: If it is larger than allowed, or no such message.
    """
    return received(data, limits).message


def received(data: bytes | bytearray, limits: MessageLimits = DEFAULT_LIMITS) -> Received:
    """Return the message that the bytes stand for, and how its sender writes arrays; see `unpack`."""
    reader = _Reader()
    return Received(message=read_message(data, reader.decoded, limits), arrays=reader.arrays)


def _encoded(value: Any, arrays: ArrayFormat) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_map(value) if arrays is ArrayFormat.NUMPY_MAP else {_ARRAY: True, "as_npy": _npy(value)}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _npy(array: np.ndarray) -> bytes:
    """Return the bytes that ``np.save`` writes for an array in C order, at a quarter of its cost for large images."""
    array = np.asarray(array, order="C")
    if array.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"an array of {array.dtype} may not travel")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((header.getvalue(), array.data))


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
            return _modality(value.get("as_json"))
        if _ARRAY in value:
            self._note(ArrayFormat.NPY)
            return _saved_array(value.get("as_npy"))
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
        raise MessageError(str(error)) from error


def _saved_array(data: object) -> np.ndarray:
    """Return the array that ``np.save`` wrote, without ``np.load``, which allocates the size in the header."""
    if not isinstance(data, bytes):
        raise MessageError(f"an array travels as bytes, this one is a {type(data).__name__}")
    try:
        dtype, shape, is_fortran, size = npy_header(data)
    except ValueError as error:
        raise MessageError(f"an array is damaged: {error}") from error
    return array_of(memoryview(data)[size:], dtype, shape, "F" if is_fortran else "C")


def _modality(fields: object) -> RemoteModality:
    if isinstance(fields, str):
        raise MessageError("a modality came as text, as GR00T N1.5 writes it; N1.6 is the oldest that is understood")
    known = fields if isinstance(fields, dict) else {}
    indices, keys = known.get("delta_indices"), known.get("modality_keys")
    if not _is_list_of(indices, int) or not _is_list_of(keys, str):
        raise MessageError(f"a modality needs lists of delta_indices and modality_keys, got {in_words(fields)}")
    return RemoteModality(delta_indices=tuple(indices or ()), modality_keys=tuple(keys or ()))


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)
