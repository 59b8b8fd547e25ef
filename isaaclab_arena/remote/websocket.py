"""A websocket to a policy server, within limits of time and size."""

import logging
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena.remote.protocols import ANSWER_LIMITS, ServerAddress, UnauthorisedError

_CLOSE_S = 1.0
_LOOK_S = 0.05
_UNAUTHORISED = (401, 403)
_REDIRECTS = (300, 301, 302, 303, 307, 308)
_TOO_LARGE = 1009

# Each error of the library becomes one message of this program, so its own tracebacks are not logged.
_QUIET = logging.getLogger("websockets.client.of_policies")
_QUIET.setLevel(logging.CRITICAL)


@dataclass(kw_only=True, eq=False)
class _Deadlines:
    """Shuts late sockets down, so that no thread of the library waits for a server."""

    # The library answers pings at any time. A server that sends pings and reads no answers, or reads a byte now and
    # then, would block all its threads.
    lock: threading.Lock = field(default_factory=threading.Lock)
    of_sockets: dict[sockets.socket, float] = field(default_factory=dict)  # moments of `time.monotonic` [s]
    thread: threading.Thread | None = None

    def watch(self) -> None:
        """Shut each socket down whose moment has passed, for ever."""
        while True:
            time.sleep(_LOOK_S)
            with self.lock:
                late = [socket for socket, deadline in self.of_sockets.items() if time.monotonic() > deadline]
                for socket in late:
                    del self.of_sockets[socket]
                    with suppress(OSError):
                        socket.shutdown(sockets.SHUT_RDWR)


_DEADLINES = _Deadlines()


class Websocket:
    """One websocket to a policy server, for one thread; to be closed after any error, as a late answer misleads."""

    def __init__(
        self, address: ServerAddress, timeout_s: float, *, numbers_answers: bool, limits: WireLimits = ANSWER_LIMITS
    ) -> None:
        # OSError: no connection in time, or the server refuses it. UnicodeError: invalid host name. UnauthorisedError:
        # the server wants another ``Authorization: Api-Key``.
        self._limits = limits
        # If answers have no numbers, `send` refuses an early message: it would be taken for the answer.
        self._numbers_answers = numbers_answers
        self._open = ExitStack()
        token = address.api_token
        deadline = time.monotonic() + timeout_s
        # With a socket of ours the library follows no redirect, and `_Deadlines` can end its waits.
        self._socket = sockets.create_connection((address.host, address.port), timeout=timeout_s)
        self._open.callback(self._socket.close)
        self._socket.settimeout(None)
        try:
            with self._within(deadline - time.monotonic()):
                dialled = client.connect(
                    f"ws://{address}",
                    sock=self._socket,
                    compression=None,
                    max_size=limits.max_message_bytes,
                    additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                    open_timeout=timeout_s,
                    close_timeout=_CLOSE_S,
                    # The server's model blocks its event loop, so it answers no ping meanwhile.
                    ping_interval=None,
                    proxy=None,
                    logger=_QUIET,
                )
                self._connection = self._open.enter_context(dialled)
        except BaseException as error:
            self._open.close()
            refused = error if isinstance(error, InvalidStatus) else error.__cause__
            if isinstance(refused, InvalidStatus):
                response = refused.response
                if response.status_code in _UNAUTHORISED:
                    raise UnauthorisedError(str(refused)) from error
                place = response.headers.get("Location") if response.status_code in _REDIRECTS else None
                if place is not None:
                    message = f"it sends clients to {place}, which is not followed; give that address"
                    raise ConnectionError(message) from error
            if isinstance(error, InvalidURI):
                raise UnicodeError(str(error)) from error
            if isinstance(error, WebSocketException):
                # If a server ends at this moment, the kind of error depends on the progress of the handshake.
                raise ConnectionError(f"it refuses the connection ({error})") from error
            raise

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message; OSError if the connection is lost or slow, WireError if the server sent something unasked."""
        try:
            with self._within(timeout_s):
                if not self._numbers_answers:
                    # An early message would be taken for the answer to this one.
                    try:
                        self._connection.recv(timeout=0)
                    except TimeoutError:
                        pass
                    else:
                        raise WireError("it answered twice, or what it was not asked")
                self._connection.send(request)
        except TimeoutError as error:
            raise TimeoutError(f"it read nothing for {timeout_s:g} s") from error
        except WebSocketException as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float) -> str | bytes:
        """Return the next message; OSError if the connection is lost or too slow, WireError if it is too large."""
        try:
            with self._within(timeout_s):
                return self._connection.recv(timeout=timeout_s)
        except WebSocketException as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        with suppress(TimeoutError), self._within(_CLOSE_S):
            self._open.close()

    @contextmanager
    def _within(self, timeout_s: float) -> Iterator[None]:
        """Limit the time of a block in which the library uses the socket; TimeoutError if it took longer."""
        deadline = time.monotonic() + timeout_s
        with _DEADLINES.lock:
            _DEADLINES.of_sockets[self._socket] = deadline
            # A forked process lacks the thread of its parent.
            if _DEADLINES.thread is None or not _DEADLINES.thread.is_alive():
                _DEADLINES.thread = threading.Thread(
                    target=_DEADLINES.watch, name="deadlines of websockets", daemon=True
                )
                _DEADLINES.thread.start()
        try:
            yield
        except (OSError, WebSocketException, AssertionError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError("timed out") from error
            if isinstance(error, AssertionError):
                # The library does not expect, for example, an answer that comes before the request.
                raise ConnectionError("it speaks out of turn") from error
            raise
        finally:
            with _DEADLINES.lock:
                _DEADLINES.of_sockets.pop(self._socket, None)

    def _lost(self, error: WebSocketException) -> Exception:
        if isinstance(error, ConnectionClosed):
            # The side that closed first received the large message; the other side repeats the code.
            if error.rcvd is not None and error.rcvd.code == _TOO_LARGE and error.rcvd_then_sent is not False:
                return WireError(f"it takes no message as large as this one ({error.rcvd})")
            if error.sent is not None and error.sent.code == _TOO_LARGE:
                most = self._limits.max_message_bytes
                return WireError(f"the answer has more bytes than the {most} that are allowed")
        return ConnectionError(f"the connection is lost ({error})")
