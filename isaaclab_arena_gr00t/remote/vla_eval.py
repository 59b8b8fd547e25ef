"""Hold a session with a model server of vla-eval: both say hello, then episodes start, are asked about, and end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError
from isaaclab_arena_gr00t.remote.identity import identity_line, same_server
from isaaclab_arena_gr00t.remote.websocket import ANSWER_LIMITS, LostError, Websocket, plain
from isaaclab_arena_gr00t.remote.wire.messages import WireError, WireLimits, in_words
from isaaclab_arena_gr00t.remote.wire.vla_eval_wire import (
    ACTION,
    EPISODE_END,
    EPISODE_START,
    ERROR,
    HELLO,
    OBSERVATION,
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


class VlaEvalSession:
    """One session with a model server, for one env slot. It belongs to one thread.

    The server remembers the episode: the rest of a chunk, earlier pictures. So a session that is lost in the middle of
    an episode is not opened again for it; between episodes it is.

    Args:
        address: The server.
        stated: What it said of itself in an earlier session; None if there was none.
        limits: How large its answers may be.

    Attributes:
        hello: What the server said of itself last.
    """

    def __init__(
        self, address: ServerAddress, *, stated: str | None = None, limits: WireLimits = ANSWER_LIMITS
    ) -> None:
        self.hello = Hello()
        self._address = address
        self._stated = stated
        self._number = 0
        self._websocket = Websocket(address, server="vla-eval model server", limits=limits)

    @property
    def stated(self) -> str:
        """The server's first description of itself, in one line; `UNKNOWN` if there is none."""
        return UNKNOWN if self._stated is None else self._stated

    def wait_until_ready(self) -> None:
        """Wait until there is a connection, and both ends have said hello.

        Raises:
            ServerUnreachableError: If there is none within ``wait_for_server_s``.
            ConfigError: If the address is invalid, or the server needs another key.
            PolicyError: If what answers is no such server, speaks another version, or is another one than before.
        """
        self._websocket.open_in_time(self._meet)

    def start_episode(self, task: Mapping[str, Any]) -> None:
        """Tell that an episode starts, in a new session if the old one is lost.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time.
            PolicyError: See `wait_until_ready`.
        """
        self.wait_until_ready()
        payload = {"task": dict(task)}
        try:
            self._send(EPISODE_START, payload)
        except LostError:
            self.wait_until_ready()
            try:
                self._send(EPISODE_START, payload)
            except LostError as error:
                raise self._unreachable(error) from error

    def end_episode(self) -> None:
        """Tell that the episode is over. A server that is gone need not be told."""
        try:
            self._send(EPISODE_END, {})
        except LostError:
            return

    def show(self, observation: Mapping[str, Any]) -> None:
        """Send an observation; `answer` returns what comes of it.

        Raises:
            ServerUnreachableError: If the session is lost.
            PolicyError: If it holds what cannot travel.
        """
        try:
            self._send(OBSERVATION, dict(observation))
        except LostError as error:
            raise self._unreachable(error) from error

    def answer(self) -> Mapping[str, Any]:
        """Return the server's answer to what it was shown last.

        Raises:
            ServerUnreachableError: If the session is lost, or nothing comes in time.
            PolicyError: If the server failed, or answers something else.
        """
        try:
            message = self._received(self._address.timeout_s)
        except LostError as error:
            raise self._unreachable(error) from error
        if message.kind != ACTION:
            raise self._refused(f"answered an observation with '{plain(message.kind)}', not with an action")
        if message.number != self._number:
            raise self._refused(
                f"answered message {message.number}, and {self._number} is due: it repeats or skips one"
            )
        return message.payload

    def close(self) -> None:
        """Close the session. May be called more than once; the next episode opens another."""
        self._websocket.close()

    def _meet(self, timeout_s: float) -> None:
        where = self._websocket.uri
        self._send(HELLO, {"harness_version": HARNESS, "protocol_version": PROTOCOL_VERSION})
        message = self._received(timeout_s)
        if message.kind != HELLO:
            raise self._refused(f"answered hello with '{plain(message.kind)}'")
        said = message.payload
        if said.get("protocol_version") != PROTOCOL_VERSION:
            version = in_words(said.get("protocol_version"))
            raise self._refused(f"speaks version {version} of the protocol, and {PROTOCOL_VERSION} is known here")
        names = ("action_spec", "observation_spec", "observation_params")
        self.hello = Hello(**{name: said[name] for name in names if isinstance(said.get(name), dict)})
        stated = {name: value for name, value in said.items() if name not in ("capabilities", "protocol_version")}
        try:
            self._stated = same_server(self._stated, identity_line(stated), where=where)
        except PolicyError:
            self.close()
            raise

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        try:
            data = pack(Message(kind=kind, payload=payload, number=self._number + 1))
        except WireError as error:
            raise PolicyError(f"this cannot be sent to the vla-eval model server: {error}") from error
        self._number += 1
        self._websocket.send(data)

    def _received(self, timeout_s: float) -> Message:
        answer = self._websocket.receive(timeout_s)
        if isinstance(answer, str):
            raise self._refused(f"sent text: {plain(answer)}")
        try:
            message = unpack(answer, self._websocket.limits)
        except WireError as error:
            hint = "; a server of openpi's is asked with openpi_remote" if self._stated is None else ""
            raise self._refused(
                f"sent something else than a vla-eval model server does: {plain(error)}{hint}"
            ) from error
        if message.kind == ERROR:
            raise self._refused(f"failed: {plain(message.payload.get('error'))}")
        return message

    def _refused(self, what: str) -> PolicyError:
        """Close the session, in which nothing can be trusted any more, and return what is to be raised."""
        self.close()
        return PolicyError(f"the vla-eval model server at {self._websocket.uri} {what}")

    def _unreachable(self, error: LostError) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"the vla-eval model server at {self._websocket.uri}: {plain(error)}; it remembers what it was shown, so "
            "the episode cannot go on; its log may say why, and timeout_s has to leave its model enough time"
        )
