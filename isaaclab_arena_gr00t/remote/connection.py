"""Connections to a policy server of any protocol, one or one for each env slot."""

import logging
import socket as sockets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.logs import plain_text
from isaaclab_arena.workers.policy_elsewhere import PolicyElsewhere, patience_s
from isaaclab_arena_gr00t.remote import openpi as openpi_wire
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
from isaaclab_arena_gr00t.remote.wire.messages import WireError
from isaaclab_arena_gr00t.remote.wire.zmtp import GREETING

# Tell by its first answer which protocol a server speaks, to name one that was taken for another.

_CONNECT_S = 1.0
_SPEAKS_FIRST_S = 0.2
_READY = b"HTTP/1.1 200"
_READY_PATHS = (("/healthz", OpenpiWire), ("/health", VlaEvalWire))


def speaker_of(said: str | bytes | bytearray) -> type[Wire] | None:
    """Return the protocol of a server by its first message on a websocket, None if it is not known."""
    try:
        message = None if isinstance(said, str) else openpi_wire.unpack(said)
    except WireError:
        return None
    if not isinstance(message, dict):
        return None
    return VlaEvalWire if {"type", "payload", "seq"} <= message.keys() else OpenpiWire


def what_listens(address: ServerAddress) -> type[Wire] | None:
    """Return the protocol of what listens at an address, None if it is not known or nothing listens.

    It asks for nothing but whether the server is ready, so a server of any kind is left as it was.
    """
    try:
        if _said(address, b"", len(GREETING[:1])) == GREETING[:1]:
            return Gr00tWire
        for path, wire in _READY_PATHS:
            request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
            if _said(address, request, len(_READY)) == _READY:
                return wire
    except (OSError, UnicodeError):
        return None
    return None


def _said(address: ServerAddress, request: bytes, num_bytes: int) -> bytes:
    """Return the first bytes that a server says, to a request or of itself."""
    said = b""
    with sockets.create_connection((address.host, address.port), timeout=_CONNECT_S) as connection:
        connection.sendall(request)
        if not request:
            connection.settimeout(_SPEAKS_FIRST_S)
        try:
            while len(said) < num_bytes and (piece := connection.recv(num_bytes - len(said))):
                said += piece
        except TimeoutError:
            pass
    return said


# Connect to a policy server of any protocol: wait for it, ask it, and connect again when it comes back.

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
    """A policy server does not answer; the user can mend this."""


class AnswerLostError(Exception):
    """An answer was lost or late, and the question may be asked once more."""


class PolicyServerConnection:
    """One connection to a policy server. It belongs to one thread.

    A question whose connection is lost, or which is not answered in time, is asked once more as soon as the server is
    there again; nothing is played meanwhile. Where the server remembers the episode, that is done only until it has
    answered in it once; from then on a lost connection is the end of the episode. A connection with a question whose
    answer was not read is never used again, because most protocols do not number their answers.

    Args:
        address: The server.
        wire: The protocol.
        stated: The server's description of itself in an earlier connection, None if there was none.
    """

    def __init__(self, address: ServerAddress, wire: Wire, *, stated: str | None = None) -> None:
        self.address = address
        self.wire = wire
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
        """The server's first description of itself, in one line; `UNKNOWN` if there is none."""
        return UNKNOWN if self._server.stated is None else self._server.stated

    def wait_until_ready(self) -> None:
        """Wait until there is a connection, and the server has introduced itself.

        Raises:
            ServerUnreachableError: If there is none within ``wait_for_server_s``.
            ConfigError: If the address is invalid, or the server wants another token.
            PolicyError: If what answers is no such server.
            PolicyLostError: If it is another one than before.
        """
        wait_s = patience_s(self.address.wait_for_server_s)
        deadline = time.monotonic() + wait_s
        limit_s, pause_s = _FIRST_LIMIT_S, _FIRST_PAUSE_S
        while self._channel is None:
            try:
                self._open(min(limit_s, max(_FIRST_PAUSE_S, deadline - time.monotonic()), self.address.timeout_s))
            except OSError as error:
                self._refuse_another(what_listens(self.address))
                left_s = deadline - time.monotonic()
                if left_s <= pause_s:
                    raise ServerUnreachableError(self._why_unreachable(error, wait_s)) from error
                if isinstance(error, TimeoutError):
                    # A server that is busy with others' questions introduces itself late.
                    limit_s *= 4
                else:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def begin(self, message: Message | None = None) -> None:
        """Begin an episode, in a new connection if the old one is lost.

        Args:
            message: What the server is told of it, None for nothing. There is no answer to it.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time.
            PolicyError: See `wait_until_ready`.
        """
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
        """Tell that the episode is over. A server that is gone need not be told."""
        self._beginning, self._has_answered = None, False
        if self._channel is not None:
            try:
                self._send(message)
            except OSError:
                self.close()

    def show(self, kind: str, payload: Mapping[str, Any] | None = None) -> None:
        """Ask a question; `answer` returns what comes of it, and tells if the connection is lost.

        Raises:
            ServerUnreachableError: If the server does not come back in time.
            PolicyError: If it holds what cannot travel; or see `wait_until_ready`.
        """
        self._shown, self._loss = (kind, payload), None
        try:
            self._connect_for_question()
            self._send(self._shown, owes_answer=True)
        except OSError as error:
            self._loss = error

    def answer(self, until_s: float | None = None) -> Any:
        """Return the server's answer to what it was shown last.

        Args:
            until_s: When it has to be there, on the clock of `time.monotonic` [s]; None for ``timeout_s`` from now on.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time, or takes too long.
            PolicyError: If it answers with an error, or with something that cannot be read.
            ConfigError: If it wants another token.
        """
        try:
            return self.first_answer(until_s)
        except AnswerLostError:
            self.ask_again()
            return self.second_answer()

    def first_answer(self, until_s: float | None = None) -> Any:
        """Return the answer as `answer` does, but only wait for it where it was asked for first.

        Raises:
            AnswerLostError: If it was lost, and may be asked for again.
        """
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
        """Ask once more what was shown last, as soon as the server is there; see `answer`."""
        try:
            self._send_beginning()
            if self._shown is not None:
                self._send(self._shown, owes_answer=True)
        except OSError as error:
            self.close()
            raise self._silent(error) from error

    def second_answer(self, until_s: float | None = None) -> Any:
        """Return the answer to what was asked once more; see `answer`."""
        try:
            return self._received(until_s)
        except OSError as error:
            self.close()
            raise self._silent(error) from error

    def ask(self, kind: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Return the server's answer to a question; see `show` and `answer`."""
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

    def _connect_for_question(self) -> None:
        if self._owes_answer:
            # Whoever asked was interrupted. What comes late would be taken for the answer to this question.
            self.close()
        if self._channel is None and self._may_connect_again:
            self._send_beginning()

    def _open(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            channel = self._channel = self.wire.dial(self.address, timeout_s)
            greeting = self.wire.greeting()
            if greeting is not None:
                channel.send(greeting, max(_FIRST_PAUSE_S, deadline - time.monotonic()))
            said = channel.receive(max(_FIRST_PAUSE_S, deadline - time.monotonic()))
            self._meet(said)
        except UnauthorisedError as error:
            raise self._wrong_token(error) from error
        except UnicodeError as error:
            raise ConfigError(Problem(f"'{self.address.host}' is no machine: {error}", key="remote_host")) from error
        except WireError as error:
            raise self._unreadable(error) from error
        except OSError:
            self.close()
            raise

    def _meet(self, said: str | bytes | bytearray) -> None:
        """Read the first message of a server, and compare what it says of itself with what it said before."""
        try:
            line = identity_line(self._read(lambda: self.wire.introduced(said)))
        except PolicyError:
            self._refuse_another((speaker_of(said) if self.wire.scheme else None) or what_listens(self.address))
            raise
        try:
            self._server.meet(line)
        except PolicyLostError:
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
            raise self._refused(plain(error)) from error

    def _refused(self, what: str) -> PolicyError:
        """Close the connection, in which nothing can be trusted any more, and return what is to be raised."""
        self.close()
        return PolicyError(f"{self._server.name} {what}")

    def _unreadable(self, error: WireError) -> PolicyError:
        return self._refused(f"sent something else than such a server does: {plain(error)}")

    def _refuse_another(self, other: type[Wire] | None) -> None:
        """Say what listens, if it is a server of another protocol.

        Raises:
            PolicyError: If it is.
        """
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

    def _why_unreachable(self, error: OSError, wait_s: float) -> str:
        reason = plain(error.strerror or error)
        try:
            sockets.getaddrinfo(self.address.host, self.address.port)
        except OSError as unknown:
            reason = f"the name '{self.address.host}' means nothing here ({unknown.strerror})"
        return (
            f"no {self.wire.server} answers at {self.wire.scheme}{self.address}, after waiting {wait_s:g} s for it: "
            f"{reason}{self.wire.advice(self.address)}"
        )

    def _reason(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._limit_s:.4g} s"
        return plain(error.strerror or error)


def plain(words: object) -> str:
    """Return text of a server, or of an error that may repeat it, shortened and without control characters."""
    return plain_text(str(words)[:_LONGEST_WORDS])


# Hold one connection to a policy server for each env slot, and ask all of them at once.

WireT = TypeVar("WireT", bound=Wire)


class SlotConnections(Generic[WireT]):
    """The connections of one policy to one server.

    All env slots have their questions under way at once, so that a server that batches connections has full batches.

    Args:
        address: The server.
        make_wire: Makes the protocol of a connection.

    Raises:
        ServerUnreachableError: If no server answers in time.
        ConfigError: If the address is invalid, or the server wants another token.
        PolicyError: If what answers is no such server.
    """

    def __init__(self, address: ServerAddress, make_wire: Callable[[], WireT]) -> None:
        self.wire = make_wire()
        first = PolicyServerConnection(address, self.wire)
        first.wait_until_ready()
        self.stated = first.stated
        self._address = address
        self._make_wire = make_wire
        self._connections = {0: first}

    def of(self, env_id: int) -> PolicyServerConnection:
        """Return the connection of an env slot; it may be new."""
        if env_id not in self._connections:
            self._connections[env_id] = PolicyServerConnection(self._address, self._make_wire(), stated=self.stated)
        return self._connections[env_id]

    def ask(self, kind: str, shown: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Any]:
        """Return the server's answers to questions for some env slots, in their order.

        All of them have to come within ``timeout_s``, and so have those that are asked for once more.

        Args:
            kind: What kind of question it is.
            shown: Env slots, and what is asked for each; taken one by one, so that the server can begin with the first.

        Raises:
            PolicyLostError: If the server is gone, or takes too long.
            PolicyError: If it answers with an error, or with something that cannot be read.
        """
        asked = []
        for env_id, payload in shown:
            asked.append(self.of(env_id))
            asked[-1].show(kind, payload)
        answers, lost, until_s = [None] * len(asked), [], self._deadline_s()
        for place, connection in enumerate(asked):
            try:
                answers[place] = connection.first_answer(until_s)
            except AnswerLostError:
                lost.append(place)
        for place in lost:
            asked[place].ask_again()
        until_s = self._deadline_s()
        for place in lost:
            answers[place] = asked[place].second_answer(until_s)
        return answers

    def _deadline_s(self) -> float:
        return time.monotonic() + patience_s(self._address.timeout_s)

    def close(self) -> None:
        """Close the connections. The server goes on: others may be using it."""
        for connection in self._connections.values():
            connection.close()
