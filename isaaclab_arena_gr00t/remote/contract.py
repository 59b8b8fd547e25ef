"""The contract of a protocol of policy servers, their addresses, and their descriptions of themselves."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.json_values import json_line

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
        api_token=None if file is None else _token_in(file),
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
            _token_in(options.remote_api_token_file)
        except ConfigError as error:
            problems += error.problems
    return problems


def _token_in(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(Problem(f"cannot read '{file}': {error.strerror}", key=KEY_FILE_OPTION)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(f"'{file}' is no text: {error.reason}", key=KEY_FILE_OPTION)) from error
    if not text or not text.isprintable():
        found = "several lines, or signs that cannot be printed" if text else "nothing"
        message = f"'{file}' must hold the server's token on one line, it holds {found}"
        raise ConfigError(Problem(message, key=KEY_FILE_OPTION))
    return text


# The contract of a protocol of policy servers: the first messages, and the form of questions and answers.


class AnswerError(Exception):
    """A server's answer that cannot be used. Its text continues a sentence that begins with the server's name."""


class UnauthorisedError(Exception):
    """The server wants another token; the text is the server's message."""


class LeavingError(OSError):
    """The server says that it shuts down."""


class Channel(Protocol):
    """A connection of one thread that carries messages, within limits of time and size."""

    # After any error the caller must close the channel: a late answer would be taken for that to the next question.

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message; OSError if the connection is lost or slow, WireError if the server sent something unasked."""
        ...

    def receive(self, timeout_s: float) -> str | bytes | bytearray:
        """Return the next message; OSError if the connection is lost or too slow, WireError if it is too large."""
        ...

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        ...


class Wire(ABC):
    """One protocol on one connection. Time-outs, reconnects and user messages belong to `PolicyServerConnection`."""

    # Name of its servers in messages, the policy that asks them, and the prefix of an address.
    server: ClassVar[str]
    policy_type: ClassVar[str]
    scheme: ClassVar[str] = ""
    # True if the server keeps an episode's observations per connection. Once the server has answered in an episode, the
    # episode cannot go on in another connection.
    remembers: bool = False

    def advice(self, address: ServerAddress) -> str:
        """Return the end of the message that no server answers: the command that starts one."""
        del address
        return ""

    # UnauthorisedError from `dial`, `introduced` or `answer`: the server wants another token. WireError: no message of
    # this protocol. AnswerError: the server failed, answers another question, or is of no use.

    @abstractmethod
    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Return a new connection; OSError if there is none in time, UnicodeError for an invalid host name."""

    @abstractmethod
    def greeting(self) -> bytes | None:
        """Return the client's first message, None if the server speaks first."""

    @abstractmethod
    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the server's description in its first message, None if it has none."""

    @abstractmethod
    def question(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message to the server; WireError if the payload holds a type that the protocol cannot encode."""

    @abstractmethod
    def answer(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last question; LeavingError if the server shuts down."""


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
