"""The protocols of GR00T's, openpi's and vla-eval's servers: what their messages say, as bytes."""

import io
import re
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image

from arena_wire import gr00t
from arena_wire.messages import (
    ARRAY_KINDS,
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
from isaaclab_arena_gr00t.config import StatedModality
from isaaclab_arena_gr00t.remote.contract import ANSWER_LIMITS, AnswerError, Codec, LeavingError, UnauthorisedError

OBSERVATION = "observation"
"""The kind of question that openpi's and vla-eval's servers answer with actions."""


# GR00T: a ping first, then one request at a time, over ZeroMQ.


class Gr00tCodec(Codec):
    """The protocol of NVIDIA's server and of ``gr00t-server``."""

    server = "GR00T policy server"
    policy_type = "gr00t_remote_closedloop"
    advice = "; start one with: gr00t-server --model_path CHECKPOINT --port {port}"

    def __init__(self, api_token: str | None = None, limits: WireLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._api_token = api_token
        # Arrays are sent in the format of the server's answers. Ask for ``get_modality_config`` first to learn the
        # format. An answer depends only on its question, so questions may be repeated.
        self._arrays = gr00t.ArrayFormat.NPY
        self._asked = "ping"

    def hello(self) -> bytes:
        """Return a ping."""
        return self.encode("ping", None)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the description of the server's model in its answer to a ping; NVIDIA's has none."""
        answer = self.decode(said)
        return answer.get("serves") if isinstance(answer, dict) else None

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a request to an endpoint."""
        self._asked = kind
        data = {} if payload is None else {"data": payload}
        token = {"api_token": self._api_token} if self._api_token else {}
        return gr00t.pack({"endpoint": kind, **data, **token}, self._arrays)

    def decode(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last request."""
        data = said.encode() if isinstance(said, str) else said
        message, arrays = gr00t.received(data, self.limits, modality=StatedModality)
        self._arrays = arrays or self._arrays
        if not isinstance(message, dict) or "error" not in message:
            return message
        says = str(message["error"])
        # The included server's answer to waiting clients when it ends.
        if says == "the server is shutting down":
            raise LeavingError(says)
        if says.startswith("Unauthorized"):
            raise UnauthorisedError(says)
        raise AnswerError(f"could not answer '{self._asked}': {says}")


def flattened(observation: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a nested observation with flat keys, for a GR00T server that wraps its policy for simulation."""
    arrays = {
        f"{modality}.{key}": values for modality in ("video", "state") for key, values in observation[modality].items()
    }
    # ``language`` contains a list of one text per env slot; flat keys have the texts alone.
    return {**arrays, **{key: [text for (text,) in texts] for key, texts in observation["language"].items()}}


# openpi: the server describes its model, then answers observations. No message numbers, no seeds and no episodes.

_TEXT_TYPE = re.compile(r"<U(\d{1,6})")
_LAST_CHARACTERS = 4000


class OpenpiCodec(Codec):
    """The protocol of openpi's servers: msgpack, with arrays as maps with byte keys."""

    server = "openpi policy server"
    policy_type = "openpi_remote"
    scheme = "ws://"

    def __init__(self, *, remembers: bool = False, limits: WireLimits = ANSWER_LIMITS) -> None:
        super().__init__(limits)
        self.remembers = remembers  # openpi's own servers do not remember a connection's observations
        self.metadata: Mapping[str, Any] = {}  # of the last connection

    @staticmethod
    def pack(message: Any) -> bytes:
        """Return the bytes of dicts, lists, text, numbers and arrays; WireError for any other value."""
        return write_message(message, _openpi_encoded)

    @staticmethod
    def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Any:
        """Return the message in the bytes; WireError if it is invalid or too large."""
        outline(data, limits)
        return read_message(data, _openpi_decoded)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the server's metadata."""
        metadata = self._read(said)
        if not isinstance(metadata, Mapping):
            raise AnswerError(f"is no such server: it introduced itself with {in_words(metadata)}")
        self.metadata = metadata
        return metadata

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return an observation, the only kind of question."""
        del kind
        return self.pack(dict(payload or {}))

    def decode(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation."""
        answer = self._read(said)
        if not isinstance(answer, Mapping):
            raise AnswerError(f"answered {in_words(answer)}, a map is due")
        return answer

    def _read(self, said: str | bytes | bytearray) -> Any:
        if isinstance(said, str):
            # Text is the server's traceback, after which it closes the connection.
            lines = [line for line in said[-_LAST_CHARACTERS:].splitlines() if line.strip()]
            raise AnswerError(f"failed: {lines[-1].strip() if lines else 'it does not say why'}")
        return self.unpack(said, self.limits)


def _openpi_encoded(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "VOc":
        raise TypeError(f"{value.dtype} may not travel")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _openpi_decoded(value: dict[Any, Any]) -> Any:
    data, stated = value.get(b"data"), value.get(b"dtype")
    if b"__ndarray__" in value:
        # NumPy turns a prompt into an array of one text.
        text = _TEXT_TYPE.fullmatch(str(stated))
        if text is None:
            return array_of(data, dtype_of(stated), value.get(b"shape"))
        if not isinstance(data, bytes) or value.get(b"shape") not in ([], [1]) or len(data) != 4 * int(text[1]):
            raise WireError("an array of text has one text, of as many characters as its type says; this one does not")
        try:
            return data.decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise WireError("an array of text holds what is no character") from error
    if b"__npgeneric__" in value:
        if isinstance(data, str) and _TEXT_TYPE.fullmatch(str(stated)):
            return data
        dtype = dtype_of(stated)
        if dtype.kind not in ARRAY_KINDS or not isinstance(data, (bool, int, float)):
            raise WireError(f"a {type(data).__name__} is no number of type {dtype}")
        try:
            return dtype.type(data)
        except (OverflowError, ValueError) as error:
            raise WireError(f"{data!r:.100} is no number of type {dtype}") from error
    return value


# vla-eval: both say hello, then episodes start, are asked about, and end. A message has a type, a payload and a number.

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
    scheme = "ws://"
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
        return write_message(plain, partial(_vla_eval_encoded, picture_format=picture_format))

    @staticmethod
    def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Message:
        """Return the message in the bytes; WireError if invalid or too large. PNG and JPEG stay `EncodedPicture`."""
        outline(data, limits)
        plain = read_message(data, _vla_eval_decoded)
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


def encoded_picture(picture: np.ndarray, picture_format: PictureFormat) -> dict[str, Any]:
    """Return the map of a picture (height, width, channels) uint8; TypeError for 4 channels as JPEG."""
    if picture_format == "jpeg" and picture.shape[2] == 4:
        raise TypeError("a picture with 4 channels as JPEG may not travel")
    file = io.BytesIO()
    plain = picture[:, :, 0] if picture.shape[2] == 1 else picture
    Image.fromarray(plain).save(file, format=_FORMATS[picture_format], quality=_JPEG_QUALITY)
    return {_PICTURE: True, "format": picture_format, "data": file.getvalue(), "shape": list(picture.shape)}


def _vla_eval_encoded(value: Any, picture_format: PictureFormat) -> Any:
    is_picture = isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8
    if is_picture and picture_format != "raw" and value.shape[2] in _CHANNELS:
        return encoded_picture(value, picture_format)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "VOc":
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"a {type(value).__name__} may not travel")


def _vla_eval_decoded(value: dict[Any, Any]) -> Any:
    if _PICTURE not in value:
        is_array = "__ndarray__" in value
        return array_of(value.get("data"), dtype_of(value.get("dtype")), value.get("shape")) if is_array else value
    form, data, shape = value.get("format"), value.get("data"), value.get("shape")
    if form == "raw":
        return array_of(data, dtype_of(value.get("dtype", "|u1")), shape)
    if form not in _FORMATS or not isinstance(data, bytes):
        raise WireError(f"a picture is raw, png or jpeg, and bytes; this is {in_words(form)} and {in_words(data)}")
    is_shape = isinstance(shape, list) and len(shape) in (2, 3) and all(type(size) is int for size in shape)
    height, width, channels = (*shape, 1)[:3] if is_shape and isinstance(shape, list) else (0, 0, 0)
    if min(height, width) < 1 or height * width > _MAX_PIXELS or channels not in _CHANNELS:
        raise WireError(f"a picture has height, width and 1, 3 or 4 channels, and at most {_MAX_PIXELS} pixels")
    return EncodedPicture(form=str(form), data=data, shape=(height, width, channels))
