"""A policy served over websockets: a thread and an env slot for each connection of openpi's or vla-eval's clients."""

import hmac
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from arena_wire.messages import WireError, WireLimits, in_words
from isaaclab_arena.evaluation.serving import HostFullError, HostSession, ObservationRefusedError, PolicyHost
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.remote.protocols import (
    ACTION,
    EPISODE_END,
    EPISODE_START,
    ERROR,
    HELLO,
    OBSERVATION,
    PROTOCOL_VERSION,
    Message,
    OpenpiCodec,
    VlaEvalCodec,
)
from isaaclab_arena_gr00t.serving.served_job import (
    PATHS,
    ListenOptions,
    ServedJob,
    error_text,
    failure_text,
    health_answer,
)

# Below the program's own logger, so that it is shown.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_TRY_AGAIN = 1013
_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_LONGEST_REASON_BYTES = 120


Talk: TypeAlias = Callable[[ServerConnection, HostSession], None]
"""Talks with one client: it gets the connection and its session, and returns or raises when that is over."""


class WebsocketServer:
    """Gives each connection a session of a policy host, until it closes; OSError if the port is taken."""

    def __init__(self, host: PolicyHost, talk: Talk, listen: ListenOptions, stated: Mapping[str, Any]) -> None:
        # ``GET /health`` answers with `stated` and the number of sessions. It needs no token.
        self._host, self._talk, self._listen, self._stated = host, talk, listen, stated
        self._server = serve(
            self._hold,
            listen.host,
            listen.port,
            compression=None,
            process_request=self._before,
            open_timeout=_HANDSHAKE_S,
            close_timeout=_CLOSE_S,
            # A simulating client answers no ping meanwhile. The operating system notices a lost machine.
            ping_interval=None,
            max_size=listen.max_message_bytes,
            # Messages that a client sends before it has read its answer must wait on its side.
            max_queue=1,
            server_header=None,
        )
        self.port: int = self._server.socket.getsockname()[1]
        name = f"[{listen.host}]" if ":" in listen.host else listen.host
        self.address = f"ws://{name}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="websockets")

    @property
    def is_running(self) -> bool:
        """Whether the policy is served."""
        return not self._host.is_closed

    @property
    def failure(self) -> str | None:
        """The reason why the policy is served no longer, None without a failure."""
        return self._host.failure

    def start(self) -> None:
        """Begin to accept connections, on threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Close the policy host and every connection, and stop."""
        self._host.close()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        else:
            self._server.socket.close()

    def _before(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] in PATHS:
            statistics = self._host.statistics()
            counted = {"sessions": statistics.sessions, "queries": statistics.queries, "calls": statistics.calls}
            status, body = health_answer({**self._stated, **counted}, is_served=not self._host.is_closed)
            headers = [
                ("Connection", "close"),
                ("Content-Length", str(len(body))),
                ("Content-Type", "application/json"),
            ]
            return Response(status.value, status.phrase, Headers(headers), body)

        # Only a client with the token may connect, and only if an env slot is free.
        token = self._listen.api_token
        given = request.headers.get("Authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Api-Key {token}".encode()):
            return connection.respond(
                HTTPStatus.UNAUTHORIZED, "this server wants its token as 'Authorization: Api-Key TOKEN'\n"
            )
        try:
            self._host.check_room()
        except HostFullError as error:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        return None

    def _hold(self, connection: ServerConnection) -> None:
        """Talk with one client, and release its env slot at the end."""
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            session = self._host.open()
        except HostFullError as error:
            connection.close(_TRY_AGAIN, str(error)[:_LONGEST_REASON_BYTES])
            return
        try:
            self._talk(connection, session)
        except ConnectionClosed as error:
            _LOG.debug("a client has gone: %s", plain_text(error))
        finally:
            session.close()


# Talk with clients of openpi: describe the policy, then answer every observation with a chunk of actions.


@dataclass(frozen=True, eq=False)
class OpenpiTalks:
    """Talks with every client of openpi."""

    # The protocol has no episodes. So each observation is the first of an episode of its own: a policy that plays
    # chunks answers with a whole chunk, and no state of another episode remains.
    served: ServedJob
    limits: WireLimits
    prompt_key: str = field(kw_only=True)
    numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __call__(self, connection: ServerConnection, session: HostSession) -> None:
        """Talk with one client until it closes the connection."""
        served = self.served
        metadata = {
            **served.stated,
            "action_dim": served.action_dim,
            "action_horizon": served.policy.chunk_length,
            "images": list(served.mapping.images),
            "states": served.mapping.state_sizes(),
            "prompt_key": self.prompt_key,
        }
        connection.send(OpenpiCodec.pack(metadata))
        for data in connection:
            # An error is text, as openpi's own server writes it.
            connection.send(self._answer(data, session))

    def _answer(self, data: str | bytes, session: HostSession) -> str | bytes:
        if isinstance(data, str):
            return error_text("unreadable message", "this server speaks openpi's protocol, whose clients send no text")
        try:
            request = OpenpiCodec.unpack(data, self.limits)
        except WireError as error:
            return error_text("unreadable message", error)
        began_s = time.perf_counter()
        if not isinstance(request, Mapping):
            return error_text("observation refused", f"an observation is a map, this is {in_words(request)}")
        try:
            observation = self.served.mapping.observation(request, request)
            words = self.served.instruction(self.prompt_key, request.get(self.prompt_key))
            session.start_episode(self.served.episode(next(self.numbers)), words)
            actions = session.act(observation).planned
        except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
            return failure_text(error)
        return OpenpiCodec.pack(
            {"actions": actions, "server_timing": {"infer_ms": 1000 * (time.perf_counter() - began_s)}}
        )


# Talk with clients of vla-eval, whose sessions have episodes.

_FORMAT = "isaaclab_arena"


@dataclass(frozen=True, eq=False)
class VlaEvalTalks:
    """Talks with every client of vla-eval: says hello, and plays the episodes that they begin and end."""

    served: ServedJob
    limits: WireLimits
    unnumbered: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __call__(self, connection: ServerConnection, session: HostSession) -> None:
        """Talk with one client until it closes the connection."""
        # An episode begins with its first observation, which has the instruction.
        begins: Episode | None = None
        for data in connection:
            answer: Message | None = None
            try:
                message = self._message(data)
            except WireError as error:
                connection.send(VlaEvalCodec.pack(_error(error_text("unreadable message", error), 0)))
                continue
            if message.kind == HELLO:
                answer = self._hello(message)
            elif message.kind == EPISODE_START:
                session.end_episode()
                # A task without a number of its episode gets the next one of a common counter.
                task = message.payload.get("task")
                index = task.get("episode_idx") if isinstance(task, Mapping) else None
                is_number = isinstance(index, int) and not isinstance(index, bool) and index >= 0
                begins = self.served.episode(index if is_number else next(self.unnumbered))
            elif message.kind == EPISODE_END:
                session.end_episode()
                begins = None
            elif message.kind == OBSERVATION:
                try:
                    observation = self._observation(message.payload)
                    if begins is not None:
                        words = message.payload.get("task_description")
                        session.start_episode(begins, self.served.instruction("task_description", words))
                        begins = None
                    payload = {"actions": session.act(observation).action}
                    answer = Message(kind=ACTION, payload=payload, number=message.number)
                except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
                    answer = _error(failure_text(error), message.number)
            elif message.kind == ERROR:
                _LOG.warning("a client reports an error: %s", plain_text(str(message.payload.get("error"))[:500]))
            else:
                answer = _error(error_text("unknown message", f"type {in_words(message.kind)}"), message.number)
            if answer is not None:
                connection.send(VlaEvalCodec.pack(answer))

    def _message(self, data: str | bytes) -> Message:
        if isinstance(data, str):
            raise WireError("vla-eval's protocol sends no text")
        return VlaEvalCodec.unpack(data, self.limits)

    def _observation(self, payload: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        pictures = payload.get("images", {})
        if not isinstance(pictures, Mapping):
            raise ObservationRefusedError(f"'images' must hold pictures by name, it is {in_words(pictures)}")
        return self.served.mapping.observation(pictures, payload)

    def _hello(self, message: Message) -> Message:
        """Return the server's hello: its description, and the specs of actions and observations."""
        version = message.payload.get("protocol_version")
        if version != PROTOCOL_VERSION:
            words = f"version {in_words(version)} of the protocol is not known here, {PROTOCOL_VERSION} is"
            return _error(error_text("hello refused", words), message.number)
        served = self.served
        pictures = {key: _spec(key, 0, "rgb_hwc_uint8") for key in served.mapping.images}
        states = {key: _spec(key, size, _FORMAT) for key, size in served.mapping.state_sizes().items()}
        payload = {
            "harness_version": served.program,
            "protocol_version": PROTOCOL_VERSION,
            "model_server": "isaaclab_arena",
            "capabilities": {},
            **served.stated,
            "action_spec": {"action": _spec("action", served.action_dim, _FORMAT)},
            "observation_spec": {**pictures, **states, "language": _spec("language", 0, "language")},
        }
        return Message(kind=HELLO, payload=payload, number=message.number)


def _spec(name: str, dims: int, form: str) -> dict[str, Any]:
    return {"name": name, "dims": dims, "format": form}


def _error(text: str, number: int) -> Message:
    return Message(kind=ERROR, payload={"error": text}, number=number)
