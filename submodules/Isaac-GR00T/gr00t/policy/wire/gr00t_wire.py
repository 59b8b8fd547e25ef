"""Encode and decode the messages between a GR00T policy server and its clients: msgpack maps with arrays inside.

The messages equal those of NVIDIA's server and client of GR00T N1.6 and N1.7. Both formats of arrays are read, and each
peer gets the format that it writes itself.
"""

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gr00t.policy.wire.arrays import (
    ArrayFormat,
    is_numpy_map,
    numpy_map,
    numpy_value,
    read_npy,
    write_npy,
)
from gr00t.policy.wire.messages import (
    DEFAULT_LIMITS,
    WireError,
    WireLimits,
    in_words,
    outline,
    read_message,
    write_message,
)

_ARRAY = "__ndarray_class__"
_MODALITY = "__ModalityConfig_class__"
_NEWER_MODALITY = "__ModalityConfig__"


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
        message: Dicts, lists, text, bytes, numbers, arrays and modalities, which are dataclasses, nested in any way.
        arrays: How arrays are written.

    Raises:
        WireError: If it holds anything else.
    """
    return write_message(message, partial(_encoded, arrays=arrays))


def received(
    data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS, *, modality: Callable[..., Any] = dict
) -> Received:
    """Return the message that the bytes stand for, and how its sender writes arrays.

    Args:
        data: One message.
        limits: How large it may be.
        modality: Makes a modality of the lists ``delta_indices`` and ``modality_keys``.

    Raises:
        WireError: If it is larger than allowed, no msgpack, or holds an array or a type that may not travel.
    """
    outline(data, limits)
    reader = _Reader(modality)
    return Received(message=read_message(data, reader.decoded), arrays=reader.arrays)


def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS, *, modality: Callable[..., Any] = dict) -> Any:
    """Return the message that the bytes stand for; see `received`."""
    return received(data, limits, modality=modality).message


def _encoded(value: Any, arrays: ArrayFormat) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_map(value) if arrays is ArrayFormat.NUMPY_MAP else {_ARRAY: True, "as_npy": write_npy(value)}
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


class _Reader:
    """Decodes maps.

    Attributes:
        arrays: Array format of the sender, as far as its maps have shown it.
    """

    def __init__(self, modality: Callable[..., Any]) -> None:
        self.arrays: ArrayFormat | None = None
        self._modality = modality

    def decoded(self, value: dict[Any, Any]) -> Any:
        """Return the object that a map stands for, or the map itself if it is a plain one."""
        if _MODALITY in value or _NEWER_MODALITY in value:
            self._note(ArrayFormat.NPY if _MODALITY in value else ArrayFormat.NUMPY_MAP)
            return self._modality(**_modality_fields(value.get("as_json")))
        if _ARRAY in value:
            self._note(ArrayFormat.NPY)
            return read_npy(value.get("as_npy"))
        if is_numpy_map(value):
            self._note(ArrayFormat.NUMPY_MAP)
            return numpy_value(value)
        return value

    def _note(self, arrays: ArrayFormat) -> None:
        """Keep the older format if both were seen, because its sender may know no other."""
        if self.arrays is not ArrayFormat.NPY:
            self.arrays = arrays


def _modality_fields(fields: object) -> dict[str, Any]:
    if isinstance(fields, str):
        raise WireError("a modality came as text, as GR00T N1.5 writes it; N1.6 is the oldest that is understood")
    # Other versions have more fields, which are for training only.
    said = fields if isinstance(fields, dict) else {}
    indices, keys = said.get("delta_indices"), said.get("modality_keys")
    if not _is_list_of(indices, int) or not _is_list_of(keys, str):
        raise WireError(f"a modality needs lists of delta_indices and modality_keys, got {in_words(fields)}")
    return {"delta_indices": indices, "modality_keys": keys}


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)
