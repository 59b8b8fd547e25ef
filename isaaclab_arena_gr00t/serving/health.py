"""Tell over HTTP whether a policy is served: ``GET /health``, which needs no token."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

PATHS = ("/health", "/healthz")


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a server says of itself.

    Attributes:
        is_served: Whether its policy is served.
        stated: What else it says.
    """

    is_served: bool
    stated: Mapping[str, Any]

    @property
    def status(self) -> HTTPStatus:
        """200 while the policy is served, else 503."""
        return HTTPStatus.OK if self.is_served else HTTPStatus.SERVICE_UNAVAILABLE

    @property
    def body(self) -> bytes:
        """One line of JSON."""
        return f"{json.dumps({'status': 'ok' if self.is_served else 'closed', **self.stated})}\n".encode()


class HealthServer:
    """Answers ``GET /health`` on a port of its own, for a protocol that is no HTTP.

    Args:
        host: Address to listen on.
        port: Port to listen on, 0 for a free one.
        ask: Tells how the server is.

    Attributes:
        port: The port it listens on.

    Raises:
        OSError: If it cannot listen there.
    """

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
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop. May be called more than once."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
