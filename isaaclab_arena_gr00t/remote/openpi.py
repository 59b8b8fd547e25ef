"""openpi's protocol: the server describes its model, then answers observations, without numbers, seeds or episodes."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from arena_wire import messages
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, in_words, outline
from isaaclab_arena_gr00t.remote.protocols import ANSWER_LIMITS, AnswerError, Codec

_TEXT_TYPE = re.compile(r"<U(\d{1,6})")
_LAST_CHARACTERS = 4000


class OpenpiCodec(Codec):
    """The protocol of openpi's servers: msgpack, with arrays as maps with byte keys."""

    server = "openpi policy server"
    policy_type = "openpi_remote"
    scheme, path = "ws://", "/healthz"

    def __init__(self, *, remembers: bool = False, limits: WireLimits = ANSWER_LIMITS) -> None:
        super().__init__(limits)
        self.remembers = remembers  # openpi's own servers do not remember a connection's observations
        self.metadata: Mapping[str, Any] = {}  # of the last connection

    @staticmethod
    def pack(message: Any) -> bytes:
        """Return the bytes of dicts, lists, text, numbers and arrays; WireError for any other value."""
        return messages.write_message(message, _openpi_encoded)

    @staticmethod
    def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Any:
        """Return the message in the bytes; WireError if it is invalid or too large."""
        outline(data, limits)
        return messages.read_message(data, _openpi_decoded)

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
            return messages.array_of(data, messages.dtype_of(stated), value.get(b"shape"))
        if not isinstance(data, bytes) or value.get(b"shape") not in ([], [1]) or len(data) != 4 * int(text[1]):
            raise WireError("an array of text has one text, of as many characters as its type says; this one does not")
        try:
            return data.decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise WireError("an array of text holds what is no character") from error
    if b"__npgeneric__" in value:
        if isinstance(data, str) and _TEXT_TYPE.fullmatch(str(stated)):
            return data
        dtype = messages.dtype_of(stated)
        if dtype.kind not in messages.ARRAY_KINDS or not isinstance(data, (bool, int, float)):
            raise WireError(f"a {type(data).__name__} is no number of type {dtype}")
        try:
            return dtype.type(data)
        except (OverflowError, ValueError) as error:
            raise WireError(f"{data!r:.100} is no number of type {dtype}") from error
    return value
