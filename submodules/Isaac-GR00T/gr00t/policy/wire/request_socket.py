"""Send requests to a ZeroMQ REP socket, with one time limit and one size limit for a whole answer."""

import select
import socket as sockets
import time
from typing import TypeVar

from gr00t.policy.wire.messages import WireError
from gr00t.policy.wire.zmtp import (
    GREETING,
    Command,
    Message,
    MessageBegins,
    MessageReader,
    ProtocolError,
    message_pieces,
    pong,
    ready,
    split_envelope,
)

_Kind = TypeVar("_Kind", Command, Message)
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}


class ConnectionLostError(OSError):
    """The connection is unusable; the text says why."""


class RequestSocket:
    """One connection to a server, for one request at a time. It belongs to one thread.

    After any error the connection must be closed, because a late answer would be taken for that to the next request.

    Args:
        host: Machine of the server.
        port: Its port.
        timeout_s: How long the handshake may take [s].
        max_bytes: Largest size of an answer [bytes].

    Raises:
        TimeoutError: If the handshake took longer.
        ConnectionLostError: If the server does not speak ZeroMQ, or closed the connection.
        OSError: If no server listens there.
        UnicodeError: If the host is not a valid host name.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float, max_bytes: int) -> None:
        deadline = time.monotonic() + timeout_s
        self._max_bytes = max_bytes
        self._reader = MessageReader(max_bytes)
        self._socket = sockets.create_connection((host, port), timeout=timeout_s)
        try:
            self._socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            self._notice_a_vanished_machine()
            self._socket.sendall(GREETING)
            while not self._reader.has_greeted:
                self._next(deadline)
            self._socket.sendall(ready("REQ"))
            while self._next_event(deadline, Command).name != b"READY":
                pass
        except BaseException:
            self._socket.close()
            raise

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a request.

        Args:
            request: What to send.
            timeout_s: How long it may take [s].

        Raises:
            TimeoutError: If it took longer.
            ConnectionLostError: If the server closed the connection.
            WireError: If the server has sent what it was not asked for.
        """
        deadline = time.monotonic() + timeout_s
        self._check_silence(deadline)
        try:
            for piece in message_pieces([b"", request]):
                self._socket.settimeout(_left_s(deadline))
                self._socket.sendall(piece)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLostError("it closed the connection") from error

    def receive(self, timeout_s: float) -> bytes | bytearray:
        """Return the answer to the request that was sent.

        Args:
            timeout_s: How long it may take until the last byte of the answer is there [s].

        Raises:
            TimeoutError: If it took longer.
            ConnectionLostError: If the server closed the connection, or does not answer like a REP socket.
            WireError: If the answer is too large.
        """
        answer = self._next_event(time.monotonic() + timeout_s, Message)
        envelope, body = split_envelope(answer.frames)
        if len(envelope) != 1 or len(body) != 1:
            raise ConnectionLostError("it does not answer as a ZeroMQ REP socket does")
        return body[0]

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._socket.close()

    def _check_silence(self, deadline: float) -> None:
        """Refuse what came after the last answer; it would be taken for the answer to the next request."""
        arrived = select.poll()
        arrived.register(self._socket, select.POLLIN)
        while arrived.poll(0):
            if isinstance(self._next(deadline), (MessageBegins, Message)):
                raise WireError("it answered twice, or what it was not asked")

    def _next_event(self, deadline: float, kind: type[_Kind]) -> _Kind:
        while True:
            event = self._next(deadline)
            if isinstance(event, kind):
                return event

    def _next(self, deadline: float) -> object:
        self._socket.settimeout(_left_s(deadline))
        try:
            data = self._socket.recv(self._reader.num_wanted)
        except ConnectionError as error:
            raise ConnectionLostError("it closed the connection") from error
        if not data:
            raise ConnectionLostError("it closed the connection")
        try:
            event = self._reader.feed(data)
        except ProtocolError as error:
            raise ConnectionLostError(f"what listens there cannot be talked to: {error}") from error
        if self._reader.is_too_large:
            raise WireError(f"the answer has more bytes than the {self._max_bytes} that are allowed")
        if isinstance(event, Command) and event.name == b"PING":
            self._socket.sendall(pong(event))
        return event

    def _notice_a_vanished_machine(self) -> None:
        # The kernel then notices a dead server well before a long time-out.
        self._socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(sockets, name):
                self._socket.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s
