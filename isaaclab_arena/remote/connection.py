"""Connections to a policy server of any protocol, one or one for each env slot."""

import logging
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, read_message
from arena_wire.zmtp import RequestSocket
from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import Registry
from isaaclab_arena.remote import protocols
from isaaclab_arena.workers import PolicyElsewhere, patience_s

# Recognise a server's protocol by its first answer, to name the right policy in the error message.

CODECS = Registry(
    "protocol",
    {"openpi": "isaaclab_arena.remote.openpi:OpenpiCodec", "vla_eval": "isaaclab_arena.remote.vla_eval:VlaEvalCodec"},
    entry_point_group="isaaclab_arena.protocols",
)
"""The codec of each protocol. Other packages add theirs by an entry point."""

_CONNECT_S = 1.0
_SPEAKS_FIRST_S = 0.2


def _codecs() -> list[type[protocols.Codec]]:
    """Return all codecs, those first whose servers speak first."""
    found: list[type[protocols.Codec]] = []
    for name in CODECS.names():
        # The codec of a package that is not installed completely cannot be loaded.
        with suppress(ConfigError):
            found.append(CODECS.get(name))
    return sorted(found, key=lambda codec: bool(codec.path))


def what_listens(address: protocols.ServerAddress) -> type[protocols.Codec] | None:
    """Return the protocol of the server at an address, None if it is unknown or no server listens."""
    # The requests only ask for readiness, so a server of any kind keeps its state.
    with suppress(OSError, UnicodeError):
        for codec in _codecs():
            path, due, said = codec.path, codec.greeting, b""
            with sockets.create_connection((address.host, address.port), timeout=_CONNECT_S) as connection:
                if path:
                    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                else:
                    connection.settimeout(_SPEAKS_FIRST_S)
                with suppress(TimeoutError):
                    while len(said) < len(due) and (piece := connection.recv(len(due) - len(said))):
                        said += piece
            if said == due:
                return codec
    return None


def what_speaks(said: str | bytes | bytearray) -> type[protocols.Codec] | None:
    """Return the protocol of a server's first message on a websocket, None if it is unknown."""
    if isinstance(said, str):
        return None
    with suppress(WireError):
        message = read_message(said, DEFAULT_LIMITS)
        if isinstance(message, dict):
            fitting = [codec for codec in _codecs() if codec.scheme and codec.first_keys <= message.keys()]
            return max(fitting, key=lambda codec: len(codec.first_keys), default=None)
    return None


# A websocket to a policy server, within limits of time and size.

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
        self,
        address: protocols.ServerAddress,
        timeout_s: float,
        *,
        numbers_answers: bool,
        limits: WireLimits = protocols.ANSWER_LIMITS,
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
                    raise protocols.UnauthorisedError(str(refused)) from error
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


# Connect to a policy server of any protocol: wait for it, ask it, and reconnect after a loss.

_LOG = logging.getLogger(__name__)

_FIRST_LIMIT_S = 0.5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_LEAST_WAIT_S = 0.001
"""An answer that is there already is read, however late it is."""
_LONGEST_WORDS = 500

Message = tuple[str, Mapping[str, Any] | None]
"""Its kind and its content."""

Channel: TypeAlias = Websocket | RequestSocket
"""A connection of one thread that carries messages, within limits of time and size."""


def dialled(codec: protocols.Codec, address: protocols.ServerAddress, timeout_s: float) -> Channel:
    """Return a new connection; OSError if there is none in time, UnicodeError for an invalid host name."""
    # UnauthorisedError: the server wants another token.
    if codec.scheme:
        return Websocket(address, timeout_s, numbers_answers=codec.numbers_answers, limits=codec.limits)
    return RequestSocket(address.host, address.port, timeout_s=timeout_s, max_bytes=codec.limits.max_message_bytes)


class ServerUnreachableError(PolicyLostError):
    """A policy server does not answer; the user can fix this."""


class PolicyServerConnection:
    """One connection to a policy server, for one thread. It reconnects, and repeats a lost question once."""

    # A question is repeated if its connection is lost or its answer late. If the server remembers the episode and has
    # answered in it, a lost connection ends the episode. A connection with an unread answer is never used again,
    # because most protocols do not number their answers.

    def __init__(
        self,
        address: protocols.ServerAddress,
        codec: protocols.Codec,
        *,
        stated: str | None = None,
        dial: Callable[[protocols.Codec, protocols.ServerAddress, float], Channel] = dialled,
    ) -> None:
        self.address = address
        self.codec = codec
        self._dial = dial
        # `stated` is the server's description in an earlier connection; another server is refused.
        self._server = PolicyElsewhere(f"the {codec.server} at {codec.scheme}{address}", stated=stated)
        self._limit_s = address.timeout_s
        self._channel: Channel | None = None
        self._beginning: Message | None = None
        self._has_answered = False
        self._owes_answer = False

    @property
    def stated(self) -> str:
        """The server's first description of itself, in one line; `UNKNOWN` if it gave none."""
        return UNKNOWN if self._server.stated is None else self._server.stated

    def wait_until_ready(self) -> None:
        """Wait for a connection and the server's introduction; ServerUnreachableError after ``wait_for_server_s``."""
        # PolicyError: no such server. PolicyLostError: another server than before. ConfigError: wrong address or token.
        wait_s = patience_s(self.address.wait_for_server_s)
        deadline = time.monotonic() + wait_s
        limit_s, pause_s = _FIRST_LIMIT_S, _FIRST_PAUSE_S
        while self._channel is None:
            try:
                self._open(min(limit_s, max(_FIRST_PAUSE_S, deadline - time.monotonic()), self.address.timeout_s))
            except OSError as error:
                # A server of another protocol would never become ready, so name it at once.
                self._refuse_another(what_listens(self.address))
                left_s = deadline - time.monotonic()
                if left_s <= pause_s:
                    reason = plain(error.strerror or error)
                    try:
                        sockets.getaddrinfo(self.address.host, self.address.port)
                    except OSError as unknown:
                        reason = f"the name '{self.address.host}' means nothing here ({unknown.strerror})"
                    raise ServerUnreachableError(
                        f"no {self.codec.server} answers at {self.codec.scheme}{self.address}, after waiting "
                        f"{wait_s:g} s for it: {reason}{self.codec.advice.format(port=self.address.port)}"
                    ) from error
                if isinstance(error, TimeoutError):
                    # A server that is busy with others' questions introduces itself late.
                    limit_s *= 4
                else:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def begin(self, message: Message | None = None) -> None:
        """Begin an episode, in a new connection if the old one is lost; `message` to the server has no answer."""
        self._beginning, self._has_answered = message, False
        for is_repeated in (False, True):
            try:
                self._send_beginning()
            except OSError as error:
                self._lose(error, is_repeated=is_repeated)
            else:
                return

    def end(self, message: Message) -> None:
        """Send the end of the episode. A lost server needs no message."""
        self._beginning, self._has_answered = None, False
        if self._channel is not None:
            try:
                self._send(message)
            except OSError:
                self.close()

    def ask(self, kind: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Send a question and return its answer; see `ask_each`."""
        return ask_each(kind, [(self, payload)])[0]

    def close(self) -> None:
        """Close the connection. May be called more than once; the next question opens another."""
        channel, self._channel = self._channel, None
        self._owes_answer = False
        if channel is not None:
            channel.close()

    def _open(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            with self._refusals():
                channel = self._channel = self._dial(self.codec, self.address, timeout_s)
                hello = self.codec.hello()
                if hello is not None:
                    channel.send(hello, max(_FIRST_PAUSE_S, deadline - time.monotonic()))
                said = channel.receive(max(_FIRST_PAUSE_S, deadline - time.monotonic()))

                # Read the server's introduction, and compare it with the earlier one.
                try:
                    line = protocols.identity_line(self.codec.introduced(said))
                except (WireError, protocols.AnswerError):
                    # A server for one client at a time is free now to show its protocol.
                    self.close()
                    other = what_speaks(said) if self.codec.scheme else None
                    self._refuse_another(other or what_listens(self.address))
                    raise
                self._server.meet(line)
        except UnicodeError as error:
            raise ConfigError(f"'{self.address.host}' is no machine: {error}", key="remote_host") from error
        except (OSError, PolicyLostError):
            self.close()
            raise

    def _lose(self, error: OSError, *, is_repeated: bool) -> None:
        """Close after a loss or a late answer; ServerUnreachableError if the message may not be sent once more."""
        self.close()
        is_late = isinstance(error, TimeoutError)
        reason = f"it did not answer within {self._limit_s:.4g} s" if is_late else plain(error.strerror or error)
        if is_repeated:
            raise ServerUnreachableError(
                f"{self._server.name} takes connections, but answers nothing: {reason}, "
                "twice; its log may say why, and timeout_s has to leave its model enough time"
            ) from error
        if self.codec.remembers and self._has_answered:
            raise ServerUnreachableError(
                f"{self._server.name}: {reason}; it remembers what it was shown, so the episode "
                "cannot go on; its log may say why, and timeout_s has to leave its model enough time"
            ) from error
        _LOG.warning("%s: %s; waiting for it", self._server.name, reason)

    def _send_beginning(self) -> None:
        self.wait_until_ready()
        if self._beginning is not None:
            self._send(self._beginning)

    def _send(self, message: Message, *, is_question: bool = False) -> None:
        """Send a message; OSError if the connection is lost. A question opens a lost one, if the server can go on."""
        if is_question and self._owes_answer:
            # The last question was interrupted. Its late answer would be taken for the answer to this one.
            self.close()
        if is_question and self._channel is None and not (self.codec.remembers and self._has_answered):
            self._send_beginning()
        try:
            request = self.codec.encode(*message)
        except WireError as error:
            raise PolicyError(f"this cannot be sent to the {self.codec.server}: {error}") from error
        if self._channel is None:
            raise OSError("there is no connection")
        self._owes_answer |= is_question
        self._limit_s = patience_s(self.address.timeout_s)
        with self._refusals():
            self._channel.send(request, self._limit_s)

    def _received(self, until_s: float) -> Any:
        """Return the answer to the last question, due at `until_s` of `time.monotonic` [s]; OSError if it is lost."""
        if self._channel is None:
            raise OSError("there is no connection")
        with self._refusals():
            answer = self.codec.decode(self._channel.receive(max(_LEAST_WAIT_S, until_s - time.monotonic())))
        self._has_answered, self._owes_answer = True, False
        return answer

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Close the connection after an answer that cannot be used, and raise the error for the user."""
        # A connection after an error cannot be trusted any more.
        try:
            yield
        except protocols.UnauthorisedError as error:
            self.close()
            what = "another token than the one given here" if self.address.api_token else "a token"
            text = f"must name a file with the token of {self._server.name}, which wants {what}"
            raise ConfigError(f"{text}; it says: {plain(error)}", key=protocols.KEY_FILE_OPTION) from error
        except WireError as error:
            self.close()
            message = f"{self._server.name} sent something else than such a server does: {plain(error)}"
            raise PolicyError(message) from error
        except protocols.AnswerError as error:
            self.close()
            raise PolicyError(f"{self._server.name} {plain(error)}") from error

    def _refuse_another(self, other: type[protocols.Codec] | None) -> None:
        """Raise PolicyError, with the policy to use, if `other` is another protocol than this connection's."""
        if other is not None and not isinstance(self.codec, other):
            self.close()
            raise PolicyError(
                f"what listens at {self.address} is no {self.codec.server}, but of another kind ({other.server}), "
                f"which policy_type {other.policy_type} asks"
            )


def plain(words: object) -> str:
    """Return text from a server, shortened and without control characters."""
    return plain_text(str(words)[:_LONGEST_WORDS])


Question: TypeAlias = tuple[PolicyServerConnection, Mapping[str, Any] | None]
"""The connection that is asked, and the content of the question."""


def ask_each(kind: str, questions: Iterable[Question]) -> list[Any]:
    """Return the answers to questions, one per connection, in order; ServerUnreachableError if one is late twice."""
    # All questions are under way at once, so that a server that batches connections has full batches. `questions` is
    # taken one by one, so that the server can begin with the first.
    answers: dict[int, Any] = {}
    due: Iterable[tuple[int, Question]] = enumerate(questions)
    # A lost or late question is repeated once. One deadline holds for all first answers, and one for all repeated ones.
    for is_repeated in (False, True):
        asked: dict[int, Question] = {}
        unsent: dict[int, OSError] = {}
        lost: dict[int, Question] = {}
        for place, (connection, payload) in due:
            asked[place] = connection, payload
            try:
                connection._send((kind, payload), is_question=True)
            except OSError as error:
                # The answer to an earlier question may say why the server is lost.
                unsent[place] = error
        waited_s = [patience_s(connection.address.timeout_s) for connection, _ in asked.values()]
        until_s = time.monotonic() + max(waited_s, default=0.0)
        for place, (connection, payload) in asked.items():
            try:
                if place in unsent:
                    raise unsent[place]
                answers[place] = connection._received(until_s)
            except OSError as error:
                connection._lose(error, is_repeated=is_repeated)
                lost[place] = connection, payload
        due = lost.items()
    return [answers[place] for place in sorted(answers)]


# Hold one connection to a policy server for each env slot.

CodecT = TypeVar("CodecT", bound=protocols.Codec)


class SlotConnections(Generic[CodecT]):
    """The connections of one policy to one server, one per env slot."""

    def __init__(self, address: protocols.ServerAddress, make_codec: Callable[[], CodecT], **how: Any) -> None:
        # The first connection shows at once if the server is missing or of another kind; see `wait_until_ready`.
        # `how`: further arguments of each connection.
        self.codec = make_codec()
        first = PolicyServerConnection(address, self.codec, **how)
        first.wait_until_ready()
        self.stated = first.stated
        self._address = address
        self._make_codec, self._how = make_codec, {**how, "stated": first.stated}
        self._connections = {0: first}

    def of(self, env_id: int) -> PolicyServerConnection:
        """Return the connection of an env slot; it opens with the first question."""
        if env_id not in self._connections:
            self._connections[env_id] = PolicyServerConnection(self._address, self._make_codec(), **self._how)
        return self._connections[env_id]

    def ask(self, kind: str, shown: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Any]:
        """Return the answers to questions of some env slots, in order; see `ask_each`."""
        return ask_each(kind, ((self.of(env_id), payload) for env_id, payload in shown))

    def close(self) -> None:
        """Close the connections. The server keeps running: other clients may use it."""
        for connection in self._connections.values():
            connection.close()
