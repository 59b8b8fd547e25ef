"""The messages of a GR00T policy server, NVIDIA's or the one that comes along: the same bytes."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from isaaclab_arena_gr00t.remote.messages import (
    ARRAY_KINDS,
    DEFAULT_LIMITS,
    MessageError,
    MessageLimits,
    array_of,
    in_words,
    read_message,
    write_message,
)
from isaaclab_arena_gr00t.remote.npy_header import npy_header

_ARRAY = "__ndarray_class__"
_MODALITY = "__ModalityConfig_class__"


@dataclass(frozen=True, kw_only=True)
class RemoteModality:
    """What a served model takes or gives of one modality; the rest of what a server says of it is left out.

    Attributes:
        delta_indices: Steps relative to the present one.
        modality_keys: Names, in order.
    """

    delta_indices: tuple[int, ...]
    modality_keys: tuple[str, ...]


def pack(message: Any) -> bytes:
    """Return the bytes of a message of dicts, lists, text, numbers and arrays.

    Raises:
        MessageError: If it holds anything else.
    """
    return write_message(message, _encoded)


def unpack(data: bytes | bytearray, limits: MessageLimits = DEFAULT_LIMITS) -> Any:
    """Return the message that the bytes stand for, with arrays and `RemoteModality` in it.

    Raises:
        MessageError: If it is larger than allowed, or no such message.
    """
    return read_message(data, _decoded, limits)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {_ARRAY: True, "as_npy": _npy(value)}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _npy(array: np.ndarray) -> bytes:
    """Return what ``np.save`` writes of an array in C order, at a quarter of its cost for large images."""
    array = np.asarray(array, order="C")
    if array.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"an array of {array.dtype} may not travel")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((header.getvalue(), array.data))


def _decoded(value: dict[Any, Any]) -> Any:
    if _MODALITY in value:
        return _modality(value.get("as_json"))
    if _ARRAY in value:
        return _saved_array(value.get("as_npy"))
    return value


def _saved_array(data: object) -> np.ndarray:
    """Return the array that ``np.save`` wrote, without ``np.load``, which makes room for what a header promises."""
    if not isinstance(data, bytes):
        raise MessageError(f"an array travels as bytes, this one is a {type(data).__name__}")
    try:
        dtype, shape, is_fortran, size = npy_header(data)
    except ValueError as error:
        raise MessageError(f"an array is damaged: {error}") from error
    return array_of(memoryview(data)[size:], dtype, shape, "F" if is_fortran else "C")


def _modality(fields: object) -> RemoteModality:
    known = fields if isinstance(fields, dict) else {}
    indices, keys = known.get("delta_indices"), known.get("modality_keys")
    if not _is_list_of(indices, int) or not _is_list_of(keys, str):
        raise MessageError(f"a modality needs lists of delta_indices and modality_keys, got {in_words(fields)}")
    return RemoteModality(delta_indices=tuple(indices or ()), modality_keys=tuple(keys or ()))


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)
