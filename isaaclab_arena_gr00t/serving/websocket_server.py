"""Serve a policy over websockets: one thread and one env slot for each connection, within limits of size and number."""

import hmac
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from isaaclab_arena.evaluation.serving import HostFullError, HostSession, PolicyHost
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.serving.health import PATHS, Health
from isaaclab_arena_gr00t.serving.listening import ListenOptions

# Below the program's own logger, so that it is shown.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_TRY_AGAIN = 1013
_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_LONGEST_REASON_BYTES = 120


Talk: TypeAlias = Callable[[ServerConnection, HostSession], None]
"""Talks with one client: it gets the connection and its session, and returns or raises when that is over."""


class WebsocketServer:
    """Gives each connection a session of a policy host, until it closes.

    ``GET /health`` tells whether the policy is served, and how many sessions there are. It needs no token.

    Args:
        host: The policy host.
        talk: Talks with one client.
        listen: Where to listen.
        stated: What the server says of itself, in answers to ``/health``.

    Attributes:
        port: The port it listens on.
        address: Address for clients.

    Raises:
        OSError: If it cannot listen there.
    """

    def __init__(self, host: PolicyHost, talk: Talk, listen: ListenOptions, stated: dict[str, Any]) -> None:
        self._host, self._talk, self._listen, self._stated = host, talk, listen, stated
        self._server = serve(
            self._hold,
            listen.host,
            listen.port,
            compression=None,
            process_request=self._before,
            open_timeout=_HANDSHAKE_S,
            close_timeout=_CLOSE_S,
            # A client that simulates answers no ping meanwhile; the system notices one whose machine is gone.
            ping_interval=None,
            max_size=listen.max_message_bytes,
            # What a client sends before it has read its answer stays with the client.
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
        """Why the policy is served no longer, None where nothing went wrong."""
        return self._host.failure

    def start(self) -> None:
        """Take connections from now on, on threads of its own."""
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
            return self._health()
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

    def _health(self) -> Response:
        statistics = self._host.statistics()
        counted = {"sessions": statistics.sessions, "queries": statistics.queries, "calls": statistics.calls}
        health = Health(is_served=not self._host.is_closed, stated={**self._stated, **counted})
        headers = Headers(
            [("Connection", "close"), ("Content-Length", str(len(health.body))), ("Content-Type", "application/json")]
        )
        return Response(health.status.value, health.status.phrase, headers, health.body)

    def _hold(self, connection: ServerConnection) -> None:
        """Talk with one client, and give its env slot back."""
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
