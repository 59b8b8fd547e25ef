"""Policy servers: their addresses, the channels to them, the contract of a protocol, and their descriptions."""

import hashlib
import logging
import socket as sockets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from arena_wire.messages import WireError, WireLimits
from arena_wire.zmtp import RequestSocket
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.disk import json_line

# Read the address and the time limits of a policy server from the options of a job.

KEY_FILE_OPTION = "remote_api_token_file"


@dataclass(frozen=True)
class ServerOptions:
    """The options of a job for its policy server; every policy that asks one has them.

    Attributes:
        remote_host: Machine of the server.
        remote_port: Its port.
        remote_api_token: Refused: a run writes its options into its output, where a token should not be.
        remote_api_token_file: File whose only line is what the server asks for.
        timeout_s: How long an answer may take [s].
        wait_for_server_s: How long to wait for a server that is not there, at the start or later [s].
    """

    remote_host: str = "localhost"
    remote_port: int = 5555
    remote_api_token: str | None = None
    remote_api_token_file: str | None = None
    timeout_s: float = 30.0
    wait_for_server_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a policy server, with its token (None if it needs none) and time limits [s]."""

    host: str = "localhost"
    port: int = 5555
    api_token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0  # limit of one answer
    wait_for_server_s: float = 60.0  # how long to wait for an absent server, at the start or later

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def server_address(options: ServerOptions) -> ServerAddress:
    """Return the address of the server; ConfigError with every wrong option."""
    problems = address_problems(options)
    if problems:
        raise ConfigError(problems)
    file = options.remote_api_token_file
    return ServerAddress(
        host=options.remote_host,
        port=options.remote_port,
        api_token=None if file is None else token_in(file),
        timeout_s=options.timeout_s,
        wait_for_server_s=options.wait_for_server_s,
    )


def address_problems(options: ServerOptions) -> list[Problem]:
    """Return the problems of the options for the server."""
    host, port = options.remote_host, options.remote_port
    problems = []
    if not host or not host.isprintable() or any(map(str.isspace, host)):
        problems.append(Problem(f"must be the name of a machine, got {host!r}", key="remote_host"))
    if not 0 < port < 65536:
        problems.append(Problem(f"must be between 1 and 65535, got {port}", key="remote_port"))
    problems += [
        Problem(f"must be more than 0 s, got {seconds:g}", key=key)
        for key, seconds in (("timeout_s", options.timeout_s), ("wait_for_server_s", options.wait_for_server_s))
        if not 0 < seconds < float("inf")
    ]
    # A run writes the options of its jobs into its output, where a token must not be.
    if options.remote_api_token is not None:
        message = (
            "is refused, since a run writes the options of its jobs into its output, where others may read them; put "
            f"it into a file of one line, and name that in {KEY_FILE_OPTION}"
        )
        problems.append(Problem(message, key="remote_api_token"))
    if options.remote_api_token_file is not None:
        try:
            token_in(options.remote_api_token_file)
        except ConfigError as error:
            problems += error.problems
    return problems


def token_in(file: str, *, key: str = KEY_FILE_OPTION) -> str:
    """Return the token on the only line of a file; ConfigError for the option `key` if there is none."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(Problem(f"cannot read '{file}': {error.strerror}", key=key)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(f"'{file}' is no text: {error.reason}", key=key)) from error
    if not text or not text.isprintable():
        found = "several lines, or signs that cannot be printed" if text else "nothing"
        raise ConfigError(Problem(f"'{file}' must hold the server's token on one line, it holds {found}", key=key))
    return text


# Connections that carry messages, and their errors.


class AnswerError(Exception):
    """A server's answer that cannot be used. Its text continues a sentence that begins with the server's name."""


class UnauthorisedError(Exception):
    """The server wants another token; the text is the server's message."""


class LeavingError(OSError):
    """The server says that it shuts down."""


# Talk over a websocket, within limits of time and size.

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
            raise self._why_not_open(error) from error

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


Channel: TypeAlias = Websocket | RequestSocket
"""A connection of one thread that carries messages, within limits of time and size."""

# The protocols: the first messages, and the form of questions and answers.


class Codec(ABC):
    """One protocol on one connection: what is said, as bytes. It neither waits nor repeats."""

    # Name of its servers in messages, the policy that asks them, the prefix of an address, and the end of the message
    # that no server answers, with the command that starts one.
    server: ClassVar[str]
    policy_type: ClassVar[str]
    scheme: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    # Whether an answer states its question's number. Without numbers an early answer would be taken for a later one.
    numbers_answers: ClassVar[bool] = False
    # True if the server keeps an episode's observations per connection. Once the server has answered in an episode, the
    # episode cannot go on in another connection.
    remembers: bool = False

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits  # of a message from the server

    # UnauthorisedError from `dial`, `introduced` or `decode`: the server wants another token. WireError: no message of
    # this protocol. AnswerError: the server failed, answers another question, or is of no use. LeavingError: it ends.

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Return a new connection; OSError if there is none in time, UnicodeError for an invalid host name."""
        if self.scheme:
            return Websocket(address, timeout_s, numbers_answers=self.numbers_answers, limits=self.limits)
        return RequestSocket(address.host, address.port, timeout_s=timeout_s, max_bytes=self.limits.max_message_bytes)

    def hello(self) -> bytes | None:
        """Return the client's first message, None if the server speaks first."""
        return None

    @abstractmethod
    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the server's description in its first message, None if it has none."""

    @abstractmethod
    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message to the server; WireError if the payload holds a type that the protocol cannot encode."""

    @abstractmethod
    def decode(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last question."""


# Write a policy server's description of its model, in one line.

_MAX_LENGTH = 400


def identity_line(stated: object) -> str:
    """Return a server's description as one line of JSON, `UNKNOWN` if it has none; cut, with a hash, if it is long."""
    if not isinstance(stated, Mapping) or not stated:
        return UNKNOWN
    line = json_line({str(name): stated[name] for name in sorted(stated, key=str)})
    if len(line) <= _MAX_LENGTH:
        return line
    return f"{line[:_MAX_LENGTH]}… (SHA-256 {hashlib.sha256(line.encode()).hexdigest()})"
