"""The protocol of openpi's policy servers: the server describes its model, then answers observations."""

from collections.abc import Mapping
from typing import Any

from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.websocket import ANSWER_LIMITS, Websocket
from isaaclab_arena_gr00t.remote.wire.contract import AnswerError, Channel, Wire
from isaaclab_arena_gr00t.remote.wire.messages import WireLimits, in_words
from isaaclab_arena_gr00t.remote.wire.openpi_wire import pack, unpack

OBSERVATION = "observation"
"""The only kind of question."""

_LAST_CHARACTERS = 4000


class OpenpiWire(Wire):
    """The protocol of openpi's servers. It has no numbers, no seeds and no episodes.

    Args:
        remembers: Whether the server remembers what a connection has shown it. openpi's own do not.
        limits: How large answers may be.

    Attributes:
        metadata: What the server said of itself last.
    """

    server = "openpi policy server"
    policy_type = "openpi_remote"
    scheme = "ws://"

    def __init__(self, *, remembers: bool = False, limits: WireLimits = ANSWER_LIMITS) -> None:
        self.remembers = remembers
        self.metadata: Mapping[str, Any] = {}
        self._limits = limits

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Connect; see `Wire.dial`."""
        return Websocket(address, timeout_s, numbers_answers=False, limits=self._limits)

    def greeting(self) -> None:
        """Return nothing: the server speaks first."""

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the server's metadata; see `Wire.introduced`."""
        metadata = self._read(said)
        if not isinstance(metadata, Mapping):
            raise AnswerError(f"is no such server: it introduced itself with {in_words(metadata)}")
        self.metadata = metadata
        return metadata

    def question(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return an observation; see `Wire.question`."""
        del kind
        return pack(dict(payload or {}))

    def answer(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation; see `Wire.answer`."""
        answer = self._read(said)
        if not isinstance(answer, Mapping):
            raise AnswerError(f"answered {in_words(answer)}, a map is due")
        return answer

    def _read(self, said: str | bytes | bytearray) -> Any:
        if isinstance(said, str):
            # This is a traceback, after which the server closes the connection.
            raise AnswerError(f"failed: {_last_line(said)}")
        return unpack(said, self._limits)


def _last_line(text: str) -> str:
    lines = [line for line in text[-_LAST_CHARACTERS:].splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it does not say why"
