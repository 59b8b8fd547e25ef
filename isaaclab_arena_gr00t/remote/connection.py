"""Connections to a policy server of any protocol, one or one for each env slot."""

import logging
import socket as sockets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from arena_wire.messages import WireError
from arena_wire.zmtp import GREETING
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.logs import plain_text
from isaaclab_arena.workers.worker_process import PolicyElsewhere, patience_s
from isaaclab_arena_gr00t.remote import openpi
from isaaclab_arena_gr00t.remote.contract import (
    KEY_FILE_OPTION,
    AnswerError,
    Channel,
    ServerAddress,
    UnauthorisedError,
    Wire,
    identity_line,
)
from isaaclab_arena_gr00t.remote.gr00t import Gr00tWire
from isaaclab_arena_gr00t.remote.openpi import OpenpiWire
from isaaclab_arena_gr00t.remote.vla_eval import VlaEvalWire

# Recognise a server's protocol by its first answer, to name the right policy in the error message.

_CONNECT_S = 1.0
_SPEAKS_FIRST_S = 0.2
_READY = b"HTTP/1.1 200"


def _speaker_of(said: str | bytes | bytearray) -> type[Wire] | None:
    """Return the protocol of a server by its first message on a websocket, None if unknown."""
    with suppress(WireError):
        message = None if isinstance(said, str) else openpi.unpack(said)
        if isinstance(message, dict):
            return VlaEvalWire if {"type", "payload", "seq"} <= message.keys() else OpenpiWire
    return None


def what_listens(address: ServerAddress) -> type[Wire] | None:
    """Return the protocol of the server at an address, None if it is unknown or no server listens."""
    # The requests only ask for readiness, so a server of any kind keeps its state.
    with suppress(OSError, UnicodeError):
        if _said(address, b"", len(GREETING[:1])) == GREETING[:1]:
            return Gr00tWire
        for path, wire in (("/healthz", OpenpiWire), ("/health", VlaEvalWire)):
            request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
            if _said(address, request, len(_READY)) == _READY:
                return wire
    return None


def _said(address: ServerAddress, request: bytes, num_bytes: int) -> bytes:
    """Return the first bytes that a server sends, after a request or unasked."""
    said = b""
    with sockets.create_connection((address.host, address.port), timeout=_CONNECT_S) as connection:
        connection.sendall(request)
        if not request:
            connection.settimeout(_SPEAKS_FIRST_S)
        with suppress(TimeoutError):
            while len(said) < num_bytes and (piece := connection.recv(num_bytes - len(said))):
                said += piece
    return said


# Connect to a policy server of any protocol: wait for it, ask it, and reconnect after a loss.

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_FIRST_LIMIT_S = 0.5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_LEAST_WAIT_S = 0.001
"""An answer that is there already is read, however late it is."""
_LONGEST_WORDS = 500

Message = tuple[str, Mapping[str, Any] | None]
"""Its kind, and what it holds."""


class ServerUnreachableError(PolicyLostError):
    """A policy server does not answer; the user can fix this."""


class AnswerLostError(Exception):
    """An answer was lost or late, and the question may be asked once more."""


class PolicyServerConnection:
    """One connection to a policy server, for one thread. It reconnects, and repeats a lost question once."""

    # A question is repeated if its connection is lost or its answer late. If the server remembers the episode and has
    # answered in it, a lost connection ends the episode. A connection with an unread answer is never used again,
    # because most protocols do not number their answers.

    def __init__(self, address: ServerAddress, wire: Wire, *, stated: str | None = None) -> None:
        self.address = address
        self.wire = wire
        # `stated` is the server's description in an earlier connection; another server is refused.
        self._server = PolicyElsewhere(f"the {wire.server} at {wire.scheme}{address}", stated=stated)
        self._limit_s = address.timeout_s
        self._channel: Channel | None = None
        self._beginning: Message | None = None
        self._shown: Message | None = None
        self._loss: OSError | None = None
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
                        f"no {self.wire.server} answers at {self.wire.scheme}{self.address}, after waiting "
                        f"{wait_s:g} s for it: {reason}{self.wire.advice(self.address)}"
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
        try:
            self._send_beginning()
        except OSError as error:
            self.close()
            _LOG.warning("%s: %s; waiting for it", self._server.name, self._reason(error))
            try:
                self._send_beginning()
            except OSError as again:
                raise self._silent(again) from again

    def end(self, message: Message) -> None:
        """Send the end of the episode. A lost server needs no message."""
        self._beginning, self._has_answered = None, False
        if self._channel is not None:
            try:
                self._send(message)
            except OSError:
                self.close()

    def show(self, kind: str, payload: Mapping[str, Any] | None = None) -> None:
        """Send a question; `answer` returns its answer, and raises the error of a lost connection."""
        self._shown, self._loss = (kind, payload), None
        try:
            if self._owes_answer:
                # The last question was interrupted. Its late answer would be taken for the answer to this one.
                self.close()
            if self._channel is None and self._may_connect_again:
                self._send_beginning()
            self._send(self._shown, owes_answer=True)
        except OSError as error:
            self._loss = error

    def answer(self, until_s: float | None = None) -> Any:
        """Return the answer to the last question, due at `until_s` of `time.monotonic` [s] (None: in ``timeout_s``)."""
        try:
            return self.first_answer(until_s)
        except AnswerLostError:
            self.ask_again()
            return self.second_answer()

    def first_answer(self, until_s: float | None = None) -> Any:
        """Return the answer to the first attempt; AnswerLostError if it was lost and may be asked for again."""
        try:
            return self._received(until_s)
        except OSError as error:
            self.close()
            reason = self._reason(error)
            if not self._may_connect_again:
                raise ServerUnreachableError(
                    f"{self._server.name}: {reason}; it remembers what it was shown, so the episode "
                    "cannot go on; its log may say why, and timeout_s has to leave its model enough time"
                ) from error
            _LOG.warning("%s: %s; waiting for it", self._server.name, reason)
            raise AnswerLostError(reason) from error

    def ask_again(self) -> None:
        """Repeat the last question as soon as the server is there; see `answer`."""
        try:
            self._send_beginning()
            if self._shown is not None:
                self._send(self._shown, owes_answer=True)
        except OSError as error:
            self.close()
            raise self._silent(error) from error

    def second_answer(self, until_s: float | None = None) -> Any:
        """Return the answer to the repeated question; see `answer`."""
        try:
            return self._received(until_s)
        except OSError as error:
            self.close()
            raise self._silent(error) from error

    def ask(self, kind: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Send a question and return its answer; see `show` and `answer`."""
        self.show(kind, payload)
        return self.answer()

    def close(self) -> None:
        """Close the connection. May be called more than once; the next question opens another."""
        channel, self._channel = self._channel, None
        self._owes_answer = False
        if channel is not None:
            channel.close()

    @property
    def _may_connect_again(self) -> bool:
        return not (self.wire.remembers and self._has_answered)

    def _open(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            channel = self._channel = self.wire.dial(self.address, timeout_s)
            greeting = self.wire.greeting()
            if greeting is not None:
                channel.send(greeting, max(_FIRST_PAUSE_S, deadline - time.monotonic()))
            said = channel.receive(max(_FIRST_PAUSE_S, deadline - time.monotonic()))

            # Read the server's introduction, and compare it with the earlier one.
            try:
                line = identity_line(self._read(lambda: self.wire.introduced(said)))
            except PolicyError:
                self._refuse_another((_speaker_of(said) if self.wire.scheme else None) or what_listens(self.address))
                raise
            try:
                self._server.meet(line)
            except PolicyLostError:
                self.close()
                raise
        except UnauthorisedError as error:
            raise self._wrong_token(error) from error
        except UnicodeError as error:
            raise ConfigError(Problem(f"'{self.address.host}' is no machine: {error}", key="remote_host")) from error
        except WireError as error:
            raise self._unreadable(error) from error
        except OSError:
            self.close()
            raise

    def _send_beginning(self) -> None:
        self.wait_until_ready()
        if self._beginning is not None:
            self._send(self._beginning)

    def _send(self, message: Message, *, owes_answer: bool = False) -> None:
        try:
            request = self.wire.question(*message)
        except WireError as error:
            raise PolicyError(f"this cannot be sent to the {self.wire.server}: {error}") from error
        if self._channel is None:
            raise OSError("there is no connection")
        self._owes_answer |= owes_answer
        self._limit_s = patience_s(self.address.timeout_s)
        try:
            self._channel.send(request, self._limit_s)
        except WireError as error:
            raise self._unreadable(error) from error

    def _received(self, until_s: float | None) -> Any:
        loss, self._loss = self._loss, None
        channel = self._channel
        if loss is not None or channel is None:
            raise loss or OSError("there is no connection")
        left_s = self._limit_s if until_s is None else max(_LEAST_WAIT_S, until_s - time.monotonic())
        answer = self._read(lambda: self.wire.answer(channel.receive(left_s)))
        self._has_answered, self._owes_answer = True, False
        return answer

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except UnauthorisedError as error:
            raise self._wrong_token(error) from error
        except WireError as error:
            raise self._unreadable(error) from error
        except AnswerError as error:
            # A connection after an error cannot be trusted any more.
            self.close()
            raise PolicyError(f"{self._server.name} {plain(error)}") from error

    def _unreadable(self, error: WireError) -> PolicyError:
        self.close()
        return PolicyError(f"{self._server.name} sent something else than such a server does: {plain(error)}")

    def _refuse_another(self, other: type[Wire] | None) -> None:
        """Raise PolicyError, with the policy to use, if `other` is another protocol than this connection's."""
        if other is not None and not isinstance(self.wire, other):
            self.close()
            raise PolicyError(
                f"what listens at {self.address} is no {self.wire.server}, but of another kind ({other.server}), which "
                f"policy_type {other.policy_type} asks"
            )

    def _wrong_token(self, error: UnauthorisedError) -> ConfigError:
        self.close()
        what = "another token than the one given here" if self.address.api_token else "a token"
        text = f"must name a file with the token of {self._server.name}, which wants {what}"
        return ConfigError(Problem(f"{text}; it says: {plain(error)}", key=KEY_FILE_OPTION))

    def _silent(self, error: OSError) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"{self._server.name} takes connections, but answers nothing: {self._reason(error)}, "
            "twice; its log may say why, and timeout_s has to leave its model enough time"
        )

    def _reason(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._limit_s:.4g} s"
        return plain(error.strerror or error)


def plain(words: object) -> str:
    """Return text from a server, shortened and without control characters."""
    return plain_text(str(words)[:_LONGEST_WORDS])


# Hold one connection to a policy server for each env slot, and ask all of them at once.

WireT = TypeVar("WireT", bound=Wire)


class SlotConnections(Generic[WireT]):
    """The connections of one policy to one server, one per env slot."""

    def __init__(self, address: ServerAddress, make_wire: Callable[[], WireT]) -> None:
        # The first connection shows at once if the server is missing or of another kind; see `wait_until_ready`.
        self.wire = make_wire()
        first = PolicyServerConnection(address, self.wire)
        first.wait_until_ready()
        self.stated = first.stated
        self._address = address
        self._make_wire = make_wire
        self._connections = {0: first}

    def of(self, env_id: int) -> PolicyServerConnection:
        """Return the connection of an env slot; it opens with the first question."""
        if env_id not in self._connections:
            self._connections[env_id] = PolicyServerConnection(self._address, self._make_wire(), stated=self.stated)
        return self._connections[env_id]

    def ask(self, kind: str, shown: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Any]:
        """Return the answers to questions of some env slots, in order; PolicyLostError if the server is too slow."""
        # All questions are under way at once, so that a server that batches connections has full batches. `shown` is
        # taken one by one, so that the server can begin with the first.
        asked = []
        for env_id, payload in shown:
            asked.append(self.of(env_id))
            asked[-1].show(kind, payload)
        # One deadline holds for all first answers, and another one for all repeated questions.
        answers, lost = [None] * len(asked), []
        until_s = time.monotonic() + patience_s(self._address.timeout_s)
        for place, connection in enumerate(asked):
            try:
                answers[place] = connection.first_answer(until_s)
            except AnswerLostError:
                lost.append(place)
        for place in lost:
            asked[place].ask_again()
        until_s = time.monotonic() + patience_s(self._address.timeout_s)
        for place in lost:
            answers[place] = asked[place].second_answer(until_s)
        return answers

    def close(self) -> None:
        """Close the connections. The server keeps running: other clients may use it."""
        for connection in self._connections.values():
            connection.close()
