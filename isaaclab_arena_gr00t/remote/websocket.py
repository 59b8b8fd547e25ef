"""Talk to a policy server over a websocket, within limits of time and size, and wait for a server that is not there."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.remote.address import KEY_FILE_OPTION, ServerAddress
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError
from isaaclab_arena_gr00t.remote.wire.messages import WireLimits

ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CLOSE_S = 1.0
_UNAUTHORISED = (401, 403)
_LONGEST_WORDS = 500


class LostError(Exception):
    """The connection is of no use any more; it is closed."""


class Websocket:
    """One websocket to a policy server. It belongs to one thread, and can be opened again after it was lost.

    Args:
        address: The server; its ``api_token`` is sent as ``Authorization: Api-Key``.
        server: What it is called in messages, for example ``openpi policy server``.
        limits: How large its messages may be.
    """

    def __init__(self, address: ServerAddress, *, server: str, limits: WireLimits = ANSWER_LIMITS) -> None:
        self.address = address
        self.limits = limits
        self._server = server
        self._open = ExitStack()
        self._connection: ClientConnection | None = None

    @property
    def uri(self) -> str:
        """The server's address, for example ``ws://localhost:8000``."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"ws://{host}:{self.address.port}"

    def open_in_time(self, introduced: Callable[[float], None]) -> None:
        """Wait until there is a connection, and both ends have introduced themselves.

        Args:
            introduced: Says and hears what comes first, in a number of seconds.

        Raises:
            ServerUnreachableError: If there is none within ``wait_for_server_s``.
            ConfigError: If the address is invalid, or the server needs another key.
        """
        deadline = time.monotonic() + self.address.wait_for_server_s
        pause_s = _FIRST_PAUSE_S
        while self._connection is None:
            timeout_s = min(max(_FIRST_PAUSE_S, deadline - time.monotonic()), self.address.timeout_s)
            try:
                self._connect(timeout_s)
                introduced(timeout_s)
            except (OSError, LostError) as error:
                if time.monotonic() + pause_s >= deadline:
                    raise ServerUnreachableError(
                        f"no {self._server} answers at {self.uri}, after waiting "
                        f"{self.address.wait_for_server_s:g} s for it: {plain(error)}"
                    ) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def send(self, data: bytes) -> None:
        """Send a message.

        Raises:
            LostError: If the connection is lost.
        """
        if self._connection is None:
            raise LostError("there is no connection")
        try:
            self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            self.close()
            raise LostError(f"the connection is lost ({plain(error)})") from error

    def receive(self, timeout_s: float) -> str | bytes:
        """Return the next message.

        Raises:
            LostError: If the connection is lost, or nothing comes in time.
        """
        if self._connection is None:
            raise LostError("there is no connection")
        try:
            return self._connection.recv(timeout=timeout_s)
        except TimeoutError as error:
            # What comes late would be taken for the answer to the next request.
            self.close()
            raise LostError(f"it did not answer within {timeout_s:g} s") from error
        except (WebSocketException, OSError) as error:
            self.close()
            raise LostError(f"the connection is lost ({plain(error)})") from error

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._connection = None
        self._open.close()

    def _connect(self, timeout_s: float) -> None:
        token = self.address.api_token
        try:
            dialled = connect(
                self.uri,
                compression=None,
                max_size=self.limits.max_message_bytes,
                additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                open_timeout=timeout_s,
                close_timeout=_CLOSE_S,
                # The server's model blocks its event loop, so it answers no ping meanwhile.
                ping_interval=None,
                proxy=None,
            )
            self._connection = self._open.enter_context(dialled)
        except InvalidURI as error:
            raise ConfigError(Problem(f"'{self.address.host}' is no machine: {error}", key="remote_host")) from error
        except InvalidHandshake as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in _UNAUTHORISED:
                what = "another key than the one given here" if token else "a key"
                text = f"must name a file with the key of the {self._server} at {self.uri}, which wants {what}"
                raise ConfigError(Problem(f"{text}; it says: {plain(error)}", key=KEY_FILE_OPTION)) from error
            raise LostError(f"it refuses the connection ({plain(error)})") from error


def plain(words: object) -> str:
    """Return text of a server, or of an error that may repeat it, shortened and without control characters."""
    return plain_text(str(words)[:_LONGEST_WORDS])
