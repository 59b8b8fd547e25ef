"""Encode and decode the messages of vla-eval's model servers: msgpack maps with a type, a payload and a number."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from isaaclab_arena_gr00t.remote.wire.arrays import array_of, dtype_of
from isaaclab_arena_gr00t.remote.wire.messages import (
    DEFAULT_LIMITS,
    WireError,
    WireLimits,
    in_words,
    outline,
    read_message,
    write_message,
)
from isaaclab_arena_gr00t.remote.wire.pictures import (
    MARK,
    PictureFormat,
    encoded_picture,
    is_picture,
    received_picture,
)

PROTOCOL_VERSION = 1

HELLO, OBSERVATION, ACTION = "hello", "observation", "action"
EPISODE_START, EPISODE_END, ERROR = "episode_start", "episode_end", "error"


@dataclass(frozen=True, kw_only=True)
class Message:
    """What either end says.

    Attributes:
        kind: What it is about: `HELLO`, `OBSERVATION`, `ACTION`, `EPISODE_START`, `EPISODE_END` or `ERROR`.
        payload: What it says.
        number: An answer has that of what it answers.
    """

    kind: str
    payload: dict[str, Any]
    number: int


def pack(message: Message, picture_format: PictureFormat = "raw") -> bytes:
    """Return the bytes of a message of dicts, lists, text, numbers and arrays.

    Args:
        message: What is said.
        picture_format: How arrays that are pictures travel; raw ones are arrays like others.

    Raises:
        WireError: If it holds anything else.
    """
    plain = {"type": message.kind, "payload": message.payload, "seq": message.number, "timestamp": time.time()}
    return write_message(plain, partial(_encoded, picture_format=picture_format))


def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Message:
    """Return the message that the bytes stand for; a picture as PNG or JPEG stays an `EncodedPicture`.

    Raises:
        WireError: If it is larger than allowed, or no such message.
    """
    outline(data, limits)
    plain = read_message(data, _decoded)
    if not isinstance(plain, dict) or not {"type", "payload", "seq"} <= plain.keys():
        raise WireError(f"a message has a type, a payload and a seq, this is {in_words(plain)}")
    kind, payload, number = plain["type"], plain["payload"], plain["seq"]
    if not isinstance(kind, str) or not isinstance(payload, dict) or type(number) is not int:
        raise WireError(f"a message has text, a map and a whole number, this has {in_words(list(plain.values()))}")
    return Message(kind=kind, payload=payload, number=number)


def _encoded(value: Any, picture_format: PictureFormat) -> Any:
    if picture_format != "raw" and isinstance(value, np.ndarray) and is_picture(value):
        return encoded_picture(value, picture_format)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "VOc":
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"a {type(value).__name__} may not travel")


def _decoded(value: dict[Any, Any]) -> Any:
    if MARK in value:
        return received_picture(value)
    if "__ndarray__" in value:
        return array_of(value.get("data"), dtype_of(value.get("dtype")), value.get("shape"))
    return value
