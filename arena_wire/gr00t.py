"""Encode and decode the messages between a GR00T policy server and its clients: msgpack maps with arrays inside.

The messages equal those of NVIDIA's server and client of GR00T N1.6 and N1.7. Both formats of arrays are read, and each
peer gets the format that it writes itself.
"""

import dataclasses
import io
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from arena_wire import messages

_ARRAY = "__ndarray_class__"
_MODALITY = "__ModalityConfig_class__"
_NEWER_MODALITY = "__ModalityConfig__"


class ArrayFormat(Enum):
    """The format of arrays in messages."""

    NPY = "npy"  # the bytes of ``np.save``, which GR00T N1.6 writes and N1.7 still reads
    NUMPY_MAP = "numpy_map"  # the map of msgpack_numpy with byte keys, which GR00T N1.7 writes


class Received(NamedTuple):
    """A message that has arrived."""

    message: Any  # arrays in it are writable and own their memory
    arrays: ArrayFormat | None  # array format of the sender, None if the message does not show it


def pack(message: Any, arrays: ArrayFormat = ArrayFormat.NPY) -> bytes:
    """Return the bytes of nested dicts, lists, text, numbers, arrays and dataclasses; WireError for anything else."""
    return messages.write_message(message, partial(_encoded, arrays=arrays))


def received(
    data: bytes | bytearray,
    limits: messages.WireLimits = messages.DEFAULT_LIMITS,
    *,
    modality: Callable[..., Any] = dict,
) -> Received:
    """Return the message in the bytes, and how its sender writes arrays; WireError if it is invalid or too large."""
    # `modality` makes a modality of the lists ``delta_indices`` and ``modality_keys``.
    shown: set[ArrayFormat] = set()

    def decoded(value: dict[Any, Any]) -> Any:
        if _MODALITY in value or _NEWER_MODALITY in value:
            shown.add(ArrayFormat.NPY if _MODALITY in value else ArrayFormat.NUMPY_MAP)
            fields = value.get("as_json")
            if isinstance(fields, str):
                raise messages.WireError(
                    "a modality came as text, as GR00T N1.5 writes it; N1.6 is the oldest that is understood"
                )
            # Other versions have more fields, which are for training only.
            said = fields if isinstance(fields, dict) else {}
            found = {"delta_indices": said.get("delta_indices"), "modality_keys": said.get("modality_keys")}
            for values, kind in zip(found.values(), (int, str), strict=True):
                if not isinstance(values, list) or not all(isinstance(each, kind) for each in values):
                    raise messages.WireError(
                        f"a modality needs lists of delta_indices and modality_keys, got {messages.in_words(fields)}"
                    )
            return modality(**found)
        if _ARRAY in value:
            shown.add(ArrayFormat.NPY)
            return messages.read_npy(value.get("as_npy"))
        if b"nd" in value or b"complex" in value:
            # An array or a NumPy number of msgpack_numpy. Objects, which it pickles, are refused.
            shown.add(ArrayFormat.NUMPY_MAP)
            kind, is_array = value.get(b"kind", b""), value.get(b"nd")
            if b"complex" in value:
                raise messages.WireError("a complex number may not travel")
            if kind != b"":
                raise messages.WireError(f"an array of kind {messages.short_name(kind)} may not travel")
            if not isinstance(is_array, bool):
                raise messages.WireError(
                    f"whether a value is an array is true or false, not a {type(is_array).__name__}"
                )
            shape = value.get(b"shape") if is_array else []
            array = messages.array_of(value.get(b"data"), messages.dtype_of(value.get(b"type")), shape)
            return array if is_array else array[()]
        return value

    message = messages.read_message(data, limits, decoded)
    # A sender that has shown the older format may know no other.
    return Received(message, ArrayFormat.NPY if ArrayFormat.NPY in shown else next(iter(shown), None))


def unpack(
    data: bytes | bytearray,
    limits: messages.WireLimits = messages.DEFAULT_LIMITS,
    *,
    modality: Callable[..., Any] = dict,
) -> Any:
    """Return the message that the bytes stand for; see `received`."""
    return received(data, limits, modality=modality).message


def _encoded(value: Any, arrays: ArrayFormat) -> Any:
    if isinstance(value, np.ndarray):
        array = np.asarray(value, order="C")
        if array.dtype.kind not in messages.ARRAY_KINDS:
            raise TypeError(f"an array of {array.dtype} may not travel")
        if arrays is ArrayFormat.NPY:
            # The bytes that ``np.save`` writes, at a quarter of its cost for large images.
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
            return {_ARRAY: True, "as_npy": b"".join((header.getvalue(), array.data))}
        return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.data}
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # The asking client has sent no array yet, and so has not shown which of the two names it knows.
        return {_MODALITY: True, _NEWER_MODALITY: True, "as_json": _plain(dataclasses.asdict(value))}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _plain(value: Any) -> Any:
    """Return an options object as plain values, with enumerations by name."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.name if isinstance(value, Enum) else value
