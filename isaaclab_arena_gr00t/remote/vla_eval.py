"""The protocol of vla-eval's model servers: both say hello, then episodes start, are asked about, and end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.websocket import ANSWER_LIMITS, Websocket
from isaaclab_arena_gr00t.remote.wire.contract import AnswerError, Channel, Wire
from isaaclab_arena_gr00t.remote.wire.messages import WireLimits, in_words
from isaaclab_arena_gr00t.remote.wire.pictures import PictureFormat
from isaaclab_arena_gr00t.remote.wire.vla_eval_wire import (
    ACTION,
    ERROR,
    HELLO,
    PROTOCOL_VERSION,
    Message,
    pack,
    unpack,
)

HARNESS = "isaaclab-arena"
"""What this end calls itself, where vla-eval's own runner says its version."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a server says of itself.

    Attributes:
        action_spec: What its actions consist of, by name; see vla-eval's ``DimSpec``.
        observation_spec: What it wants to be shown, by name.
        observation_params: Arguments that it proposes for benchmarks of vla-eval.
    """

    action_spec: Mapping[str, Any] = field(default_factory=dict)
    observation_spec: Mapping[str, Any] = field(default_factory=dict)
    observation_params: Mapping[str, Any] = field(default_factory=dict)


class VlaEvalWire(Wire):
    """The protocol of vla-eval's servers, in one session with one of them.

    The server remembers the episode: the rest of a chunk, earlier pictures.

    Args:
        picture_format: How pictures travel.
        limits: How large answers may be.

    Attributes:
        hello: What the server said of itself last.
    """

    server = "vla-eval model server"
    policy_type = "vla_eval_remote"
    scheme = "ws://"
    remembers = True

    def __init__(self, picture_format: PictureFormat = "raw", limits: WireLimits = ANSWER_LIMITS) -> None:
        self.hello = Hello()
        self._picture_format: PictureFormat = picture_format
        self._limits = limits
        self._number = 0

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Connect; see `Wire.dial`."""
        return Websocket(address, timeout_s, numbers_answers=True, limits=self._limits)

    def greeting(self) -> bytes:
        """Return a hello."""
        return self.question(HELLO, {"harness_version": HARNESS, "protocol_version": PROTOCOL_VERSION})

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return what the server says of itself when it says hello; see `Wire.introduced`."""
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
