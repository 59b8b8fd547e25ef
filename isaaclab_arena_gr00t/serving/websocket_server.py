"""A policy served over websockets: its address, its health, and one env slot for each connection."""

import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any, Protocol, TypeAlias

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from isaaclab_arena.evaluation.serving import HostFullError, HostSession, PolicyHost
from isaaclab_arena.logs import plain_text

# Define the address and the access of a policy server of any protocol.


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The address of a server, and limits on its clients.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        api_token: Token that clients must send, None for none.
        max_message_bytes: Largest message of a client.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_token: str | None = field(default=None, repr=False)
    max_message_bytes: int = 64 * 1024 * 1024


class Server(Protocol):
    """A policy server, on threads of its own."""

    @property
    def address(self) -> str:
        """Address for clients."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the server answers; a client or a failure may have stopped it."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason why the server stopped, None without a failure."""
        ...

    def start(self) -> None:
        """Begin to answer."""
        ...

    def close(self) -> None:
        """Stop, and close the policy. May be called more than once."""
        ...


# Answer over HTTP whether a policy is served: ``GET /health``, which needs no token.

PATHS = ("/health", "/healthz")


@dataclass(frozen=True, kw_only=True)
class Health:
    """The state of a server, for ``GET /health``."""

    is_served: bool
    stated: Mapping[str, Any]  # further values of the answer

    @property
    def status(self) -> HTTPStatus:
        """200 while the policy is served, else 503."""
        return HTTPStatus.OK if self.is_served else HTTPStatus.SERVICE_UNAVAILABLE

    @property
    def body(self) -> bytes:
        """One line of JSON."""
        return f"{json.dumps({'status': 'ok' if self.is_served else 'closed', **self.stated})}\n".encode()


class HealthServer:
    """Answers ``GET /health`` on a port of its own (0: a free one), for a protocol without HTTP."""

    def __init__(self, host: str, port: int, ask: Callable[[], Health]) -> None:
        class Answers(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                health = ask()
                is_known = self.path.partition("?")[0] in PATHS
                body = health.body if is_known else b""
                self.send_response(health.status if is_known else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  what the base class calls it
                """Say nothing."""

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            if ":" in host:
                address_family = AF_INET6

        self._server = Listening((host, port), Answers)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop. May be called more than once."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


# Serve a policy over websockets: one thread and one env slot for each connection, within limits of size and number.

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

    def __init__(self, host: PolicyHost, talk: Talk, listen: ListenOptions, stated: dict[str, Any]) -> None:
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
            health = Health(is_served=not self._host.is_closed, stated={**self._stated, **counted})
            headers = Headers(
                [
                    ("Connection", "close"),
                    ("Content-Length", str(len(health.body))),
                    ("Content-Type", "application/json"),
                ]
            )
            return Response(health.status.value, health.status.phrase, headers, health.body)

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
