"""Talk to a policy server over a websocket, within limits of time and size."""

import socket as sockets
import struct
from contextlib import ExitStack

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.wire.contract import UnauthorisedError
from isaaclab_arena_gr00t.remote.wire.messages import WireError, WireLimits

ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""

_CLOSE_S = 1.0
_UNAUTHORISED = (401, 403)
_TOO_LARGE = 1009


class Websocket:
    """One websocket to a policy server; see `Channel`.

    Args:
        address: The server; its ``api_token`` is sent as ``Authorization: Api-Key``.
        timeout_s: How long it may take to connect [s].
        numbers_answers: Whether an answer has the number of its question. Otherwise what has come before a question is
            refused, because it would be taken for its answer.
        limits: How large the server's messages may be.

    Raises:
        OSError: If there is no connection in time, or the server refuses it.
        UnicodeError: If the host is not a valid name.
        UnauthorisedError: If the server wants another key.
    """

    def __init__(
        self, address: ServerAddress, timeout_s: float, *, numbers_answers: bool, limits: WireLimits = ANSWER_LIMITS
    ) -> None:
        self._limits = limits
        self._numbers_answers = numbers_answers
        self._open = ExitStack()
        token = address.api_token
        try:
            dialled = client.connect(
                f"ws://{address}",
                compression=None,
                max_size=limits.max_message_bytes,
                additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                open_timeout=timeout_s,
                close_timeout=_CLOSE_S,
                # The server's model blocks its event loop, so it answers no ping meanwhile.
                ping_interval=None,
                proxy=None,
            )
            self._connection = self._open.enter_context(dialled)
        except InvalidURI as error:
            raise UnicodeError(str(error)) from error
        except InvalidStatus as error:
            if error.response.status_code in _UNAUTHORISED:
                raise UnauthorisedError(str(error)) from error
            raise ConnectionError(f"it refuses the connection ({error})") from error
        except WebSocketException as error:
            # Which kind it is when a server ends at this moment depends on how far the handshake had come.
            raise ConnectionError(f"it refuses the connection ({error})") from error

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message; see `Channel.send`."""
        try:
            if not self._numbers_answers:
                self._check_silence()
            # The kernel gives up on a server that reads nothing.
            limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            self._connection.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDTIMEO, limit)
            self._connection.send(request)
        except (BlockingIOError, TimeoutError) as error:
            raise TimeoutError(f"it read nothing for {timeout_s:g} s") from error
        except WebSocketException as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float) -> str | bytes:
        """Return the next message; see `Channel.receive`."""
        try:
            return self._connection.recv(timeout=timeout_s)
        except WebSocketException as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._open.close()

    def _check_silence(self) -> None:
        try:
            self._connection.recv(timeout=0)
        except TimeoutError:
            return
        raise WireError("it answered twice, or what it was not asked")

    def _lost(self, error: WebSocketException) -> Exception:
        if isinstance(error, ConnectionClosed):
            # Who has closed the connection first has met what is too large; the other repeats the code.
            if error.rcvd is not None and error.rcvd.code == _TOO_LARGE and error.rcvd_then_sent is not False:
                return WireError(f"it takes no message as large as this one ({error.rcvd})")
            if error.sent is not None and error.sent.code == _TOO_LARGE:
                most = self._limits.max_message_bytes
                return WireError(f"the answer has more bytes than the {most} that are allowed")
        return ConnectionError(f"the connection is lost ({error})")
