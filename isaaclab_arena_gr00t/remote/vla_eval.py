"""The protocol of vla-eval's model servers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from arena_wire.messages import (
    DEFAULT_LIMITS,
    WireError,
    WireLimits,
    array_of,
    dtype_of,
    in_words,
    outline,
    read_message,
    write_message,
)
from isaaclab_arena_gr00t.remote.contract import AnswerError, Channel, ServerAddress, Wire
from isaaclab_arena_gr00t.remote.pictures import MARK, PictureFormat, encoded_picture, is_picture, received_picture
from isaaclab_arena_gr00t.remote.websocket import ANSWER_LIMITS, Websocket

# Encode and decode the messages of vla-eval's model servers: msgpack maps with a type, a payload and a number.

PROTOCOL_VERSION = 1

HELLO, OBSERVATION, ACTION = "hello", "observation", "action"
EPISODE_START, EPISODE_END, ERROR = "episode_start", "episode_end", "error"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of either side."""

    kind: str  # `HELLO`, `OBSERVATION`, `ACTION`, `EPISODE_START`, `EPISODE_END` or `ERROR`
    payload: dict[str, Any]
    number: int  # an answer repeats the number of its question


def pack(message: Message, picture_format: PictureFormat = "raw") -> bytes:
    """Return a message as bytes, pictures as `picture_format`; WireError for a value that cannot be encoded."""
    plain = {"type": message.kind, "payload": message.payload, "seq": message.number, "timestamp": time.time()}
    return write_message(plain, partial(_encoded, picture_format=picture_format))


def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Message:
    """Return the message in the bytes; WireError if invalid or too large. PNG and JPEG stay `EncodedPicture`."""
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


# The protocol of vla-eval's model servers: both say hello, then episodes start, are asked about, and end.


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A server's description of itself."""

    # Parts of its actions, by name; see vla-eval's ``DimSpec``.
    action_spec: Mapping[str, Any] = field(default_factory=dict)
    # The inputs that it wants, by name.
    observation_spec: Mapping[str, Any] = field(default_factory=dict)
    # Arguments that it proposes for benchmarks of vla-eval.
    observation_params: Mapping[str, Any] = field(default_factory=dict)


class VlaEvalWire(Wire):
    """The protocol of vla-eval's servers, in one session with one of them."""

    server = "vla-eval model server"
    policy_type = "vla_eval_remote"
    scheme = "ws://"
    # The server keeps the rest of a chunk and earlier pictures of the episode.
    remembers = True

    def __init__(self, picture_format: PictureFormat = "raw", limits: WireLimits = ANSWER_LIMITS) -> None:
        self.hello = Hello()  # of the last connection
        self._picture_format: PictureFormat = picture_format
        self._limits = limits
        self._number = 0

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Connect; see `Wire.dial`."""
        return Websocket(address, timeout_s, numbers_answers=True, limits=self._limits)

    def greeting(self) -> bytes:
        """Return the client's hello."""
        # vla-eval's own runner sends its version here.
        return self.question(HELLO, {"harness_version": "isaaclab-arena", "protocol_version": PROTOCOL_VERSION})

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the description in the server's hello; see `Wire.introduced`."""
        message = self._read(said)
        if message.kind != HELLO:
            raise AnswerError(f"answered hello with '{message.kind}'")
        hello = message.payload
        if hello.get("protocol_version") != PROTOCOL_VERSION:
            version = in_words(hello.get("protocol_version"))
            raise AnswerError(f"speaks version {version} of the protocol, and {PROTOCOL_VERSION} is known here")
        names = ("action_spec", "observation_spec", "observation_params")
        self.hello = Hello(**{name: hello[name] for name in names if isinstance(hello.get(name), dict)})
        return {name: value for name, value in hello.items() if name not in ("capabilities", "protocol_version")}

    def question(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message with the next number; see `Wire.question`."""
        message = Message(kind=kind, payload=dict(payload or {}), number=self._number + 1)
        request = pack(message, self._picture_format)
        self._number += 1
        return request

    def answer(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation; see `Wire.answer`."""
        message = self._read(said)
        if message.kind != ACTION:
            raise AnswerError(f"answered an observation with '{message.kind}', not with an action")
        if message.number != self._number:
            raise AnswerError(f"answered message {message.number}, and {self._number} is due: it repeats or skips one")
        return message.payload

    def _read(self, said: str | bytes | bytearray) -> Message:
        if isinstance(said, str):
            raise AnswerError(f"sent text: {said}")
        message = unpack(said, self._limits)
        if message.kind == ERROR:
            raise AnswerError(f"failed: {message.payload.get('error')}")
        return message
