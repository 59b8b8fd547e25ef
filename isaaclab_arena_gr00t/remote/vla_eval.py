"""vla-eval's protocol: both say hello, then episodes start, are asked about, and end."""

import io
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image

from arena_wire import messages
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, in_words, outline
from isaaclab_arena_gr00t.remote.protocols import ANSWER_LIMITS, AnswerError, Codec

PROTOCOL_VERSION = 1

HELLO, ACTION, EPISODE_START, EPISODE_END, ERROR = "hello", "action", "episode_start", "episode_end", "error"

PictureFormat = Literal["raw", "png", "jpeg"]
"""How pictures travel."""

_PICTURE = "__image__"
_FORMATS = {"png": "PNG", "jpeg": "JPEG"}
_MAX_PIXELS = 1 << 24
_CHANNELS = (1, 3, 4)
# vla-eval's quality.
_JPEG_QUALITY = 95


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of vla-eval, of either side."""

    kind: str  # `HELLO`, `OBSERVATION`, `ACTION`, `EPISODE_START`, `EPISODE_END` or `ERROR`
    payload: dict[str, Any]
    number: int  # an answer repeats the number of its question


class VlaEvalCodec(Codec):
    """The protocol of vla-eval's servers, in one session with one of them."""

    server = "vla-eval model server"
    policy_type = "vla_eval_remote"
    scheme, path = "ws://", "/health"
    numbers_answers = True
    # The server keeps the rest of a chunk and earlier pictures of the episode.
    remembers = True

    def __init__(self, picture_format: PictureFormat = "raw", limits: WireLimits = ANSWER_LIMITS) -> None:
        super().__init__(limits)
        # Of the last connection: parts of its actions (see vla-eval's ``DimSpec``), the inputs that it wants, and
        # arguments that it proposes for benchmarks of vla-eval.
        self.specs: Mapping[str, Mapping[str, Any]] = {}
        self._picture_format: PictureFormat = picture_format
        self._number = 0

    @staticmethod
    def pack(message: Message, picture_format: PictureFormat = "raw") -> bytes:
        """Return a message as bytes, pictures as `picture_format`; WireError for a value that cannot be encoded."""
        plain = {"type": message.kind, "payload": message.payload, "seq": message.number, "timestamp": time.time()}
        return messages.write_message(plain, partial(_vla_eval_encoded, picture_format=picture_format))

    @staticmethod
    def unpack(data: str | bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Message:
        """Return the message in the bytes; WireError if invalid or too large. PNG and JPEG stay `EncodedPicture`."""
        if isinstance(data, str):
            raise WireError("vla-eval's protocol sends no text")
        outline(data, limits)
        plain = messages.read_message(data, _vla_eval_decoded)
        if not isinstance(plain, dict) or not {"type", "payload", "seq"} <= plain.keys():
            raise WireError(f"a message has a type, a payload and a seq, this is {in_words(plain)}")
        kind, payload, number = plain["type"], plain["payload"], plain["seq"]
        if not isinstance(kind, str) or not isinstance(payload, dict) or type(number) is not int:
            raise WireError(f"a message has text, a map and a whole number, this has {in_words(list(plain.values()))}")
        return Message(kind=kind, payload=payload, number=number)

    def hello(self) -> bytes:
        """Return the client's hello."""
        # vla-eval's own runner sends its version here.
        return self.encode(HELLO, {"harness_version": "isaaclab-arena", "protocol_version": PROTOCOL_VERSION})

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the description in the server's hello."""
        message = self._read(said)
        if message.kind != HELLO:
            raise AnswerError(f"answered hello with '{message.kind}'")
        hello = message.payload
        if hello.get("protocol_version") != PROTOCOL_VERSION:
            version = in_words(hello.get("protocol_version"))
            raise AnswerError(f"speaks version {version} of the protocol, and {PROTOCOL_VERSION} is known here")
        names = ("action_spec", "observation_spec", "observation_params")
        self.specs = {name: hello[name] for name in names if isinstance(hello.get(name), dict)}
        return {name: value for name, value in hello.items() if name not in ("capabilities", "protocol_version")}

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message with the next number."""
        message = Message(kind=kind, payload=dict(payload or {}), number=self._number + 1)
        request = self.pack(message, self._picture_format)
        self._number += 1
        return request

    def decode(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation."""
        message = self._read(said)
        if message.kind != ACTION:
            raise AnswerError(f"answered an observation with '{message.kind}', not with an action")
        if message.number != self._number:
            raise AnswerError(f"answered message {message.number}, and {self._number} is due: it repeats or skips one")
        return message.payload

    def _read(self, said: str | bytes | bytearray) -> Message:
        if isinstance(said, str):
            raise AnswerError(f"sent text: {said}")
        message = self.unpack(said, self.limits)
        if message.kind == ERROR:
            raise AnswerError(f"failed: {message.payload.get('error')}")
        return message


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """A picture as PNG or JPEG that is not decoded yet: a few kB may contain many millions of pixels."""

    form: str  # ``png`` or ``jpeg``
    data: bytes
    shape: tuple[int, int, int]  # height, width and channels, as the sender states them

    def decoded(self) -> np.ndarray:
        """Return the picture (height, width, channels) uint8; WireError if it is damaged or of another shape."""
        height, width, channels = self.shape
        try:
            with Image.open(io.BytesIO(self.data), formats=[_FORMATS[self.form]]) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                size = picture.size
                pixels = np.array(picture) if size == (width, height) else None
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise WireError(f"a picture is no {self.form}, or is damaged") from error
        if pixels is None:
            raise WireError(f"a picture has {size} pixels across and down, it says {(width, height)}")
        pixels = pixels.reshape(height, width, -1)
        if pixels.shape[2] != channels or pixels.dtype != np.uint8:
            raise WireError(f"a picture has {pixels.shape[2]} channels of {pixels.dtype}, it says {channels} of uint8")
        return pixels


def _vla_eval_encoded(value: Any, picture_format: PictureFormat) -> Any:
    is_picture = isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8
    if is_picture and picture_format != "raw" and value.shape[2] in _CHANNELS:
        if picture_format == "jpeg" and value.shape[2] == 4:
            raise TypeError("a picture with 4 channels as JPEG may not travel")
        file = io.BytesIO()
        plain = value[:, :, 0] if value.shape[2] == 1 else value
        Image.fromarray(plain).save(file, format=_FORMATS[picture_format], quality=_JPEG_QUALITY)
        return {_PICTURE: True, "format": picture_format, "data": file.getvalue(), "shape": list(value.shape)}
    if isinstance(value, np.ndarray) and value.dtype.kind not in "VOc":
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"a {type(value).__name__} may not travel")


def _vla_eval_decoded(value: dict[Any, Any]) -> Any:
    if _PICTURE not in value and "__ndarray__" not in value:
        return value
    if _PICTURE not in value:
        return messages.array_of(value.get("data"), messages.dtype_of(value.get("dtype")), value.get("shape"))
    form, data, shape = value.get("format"), value.get("data"), value.get("shape")
    if form == "raw":
        return messages.array_of(data, messages.dtype_of(value.get("dtype", "|u1")), shape)
    if form not in _FORMATS or not isinstance(data, bytes):
        raise WireError(f"a picture is raw, png or jpeg, and bytes; this is {in_words(form)} and {in_words(data)}")
    is_shape = isinstance(shape, list) and len(shape) in (2, 3) and all(type(size) is int for size in shape)
    height, width, channels = (*shape, 1)[:3] if is_shape and isinstance(shape, list) else (0, 0, 0)
    if min(height, width) < 1 or height * width > _MAX_PIXELS or channels not in _CHANNELS:
        raise WireError(f"a picture has height, width and 1, 3 or 4 channels, and at most {_MAX_PIXELS} pixels")
    return EncodedPicture(form=str(form), data=data, shape=(height, width, channels))
