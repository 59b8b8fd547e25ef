"""Talk to a policy server over a websocket, within limits of time and size."""

import logging
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena_gr00t.remote.contract import ServerAddress, UnauthorisedError

ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""

_CLOSE_S = 1.0
_LOOK_S = 0.05
_UNAUTHORISED = (401, 403)
_REDIRECTS = (300, 301, 302, 303, 307, 308)
_TOO_LARGE = 1009

# Each error of the library becomes one message of this program, so its own tracebacks are not logged.
_QUIET = logging.getLogger("websockets.client.of_policies")
_QUIET.setLevel(logging.CRITICAL)


class _Deadlines:
    """Shuts late sockets down, so that no thread of the library waits for a server."""

    def __init__(self) -> None:
        # The library answers pings at any time. A server that sends pings and reads no answers, or reads a byte now and
        # then, would block all its threads.
        self._lock = threading.Lock()
        self._kept: dict[sockets.socket, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def kept(self, socket: sockets.socket, deadline: float) -> Iterator[None]:
        """Shut a socket down if a block runs beyond a moment of `time.monotonic` [s]."""
        with self._lock:
            self._kept[socket] = deadline
            # A forked process lacks the thread of its parent.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="deadlines of websockets", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(socket, None)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                late = [socket for socket, deadline in self._kept.items() if time.monotonic() > deadline]
                for socket in late:
                    del self._kept[socket]
                    with suppress(OSError):
                        socket.shutdown(sockets.SHUT_RDWR)


_DEADLINES = _Deadlines()


class Websocket:
    """One websocket to a policy server; see `Channel`."""

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
            raise self._why_not_open(error) from error

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message; see `Channel.send`."""
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
        """Return the next message; see `Channel.receive`."""
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
        try:
            with _DEADLINES.kept(self._socket, deadline):
                yield
        except (OSError, WebSocketException, AssertionError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError("timed out") from error
            if isinstance(error, AssertionError):
                # The library does not expect, for example, an answer that comes before the request.
                raise ConnectionError("it speaks out of turn") from error
            raise

    def _why_not_open(self, error: BaseException) -> BaseException:
        refused = error if isinstance(error, InvalidStatus) else error.__cause__
        if isinstance(refused, InvalidStatus):
            response = refused.response
            if response.status_code in _UNAUTHORISED:
                return UnauthorisedError(str(refused))
            place = response.headers.get("Location") if response.status_code in _REDIRECTS else None
            if place is not None:
                return ConnectionError(f"it sends clients to {place}, which is not followed; give that address")
        if isinstance(error, InvalidURI):
            return UnicodeError(str(error))
        if isinstance(error, WebSocketException):
            # If a server ends at this moment, the kind of error depends on the progress of the handshake.
            return ConnectionError(f"it refuses the connection ({error})")
        return error

    def _lost(self, error: WebSocketException) -> Exception:
        if isinstance(error, ConnectionClosed):
            # The side that closed first received the large message; the other side repeats the code.
            if error.rcvd is not None and error.rcvd.code == _TOO_LARGE and error.rcvd_then_sent is not False:
                return WireError(f"it takes no message as large as this one ({error.rcvd})")
            if error.sent is not None and error.sent.code == _TOO_LARGE:
                most = self._limits.max_message_bytes
                return WireError(f"the answer has more bytes than the {most} that are allowed")
        return ConnectionError(f"the connection is lost ({error})")
