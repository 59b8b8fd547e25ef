"""Policy servers: their addresses, and the form of their messages, which a codec of each protocol writes and reads."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from arena_wire.messages import WireLimits
from isaaclab_arena.errors import ConfigError, Problem, problems_into, refuse
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.contents import UNKNOWN

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
    refuse(problems)
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
        with problems_into(problems):
            token_in(options.remote_api_token_file)
    return problems


def token_in(file: str, *, key: str = KEY_FILE_OPTION) -> str:
    """Return the token on the only line of a file; ConfigError for the option `key` if there is none."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror}", key=key) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' is no text: {error.reason}", key=key) from error
    if not text or not text.isprintable():
        found = "several lines, or signs that cannot be printed" if text else "nothing"
        raise ConfigError(f"'{file}' must hold the server's token on one line, it holds {found}", key=key)
    return text


# The errors of a conversation with a server.


class AnswerError(Exception):
    """A server's answer that cannot be used. Its text continues a sentence that begins with the server's name."""


class UnauthorisedError(Exception):
    """The server wants another token; the text is the server's message."""


class LeavingError(OSError):
    """The server says that it shuts down."""


# The protocols: the first messages, and the form of questions and answers.

ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""


class Codec(ABC):
    """One protocol on one connection: its messages as bytes. It neither waits nor repeats."""

    # Name of its servers in messages, the policy that asks them, the prefix of an address, and the end of the message
    # that no server answers, with the command that starts one.
    server: ClassVar[str]
    policy_type: ClassVar[str]
    scheme: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    # The path of a request over HTTP that shows such a server, empty if it speaks first, and how it begins to answer.
    path: ClassVar[str]
    greeting: ClassVar[bytes] = b"HTTP/1.1 200"
    # Keys of the map that is a server's first message on a websocket.
    first_keys: ClassVar[frozenset[str]] = frozenset()
    # True if an answer states its question's number. Without numbers an early answer would be taken for a later one.
    numbers_answers: ClassVar[bool] = False
    # True if the server keeps an episode's observations per connection. Once the server has answered in an episode, the
    # episode cannot go on in another connection.
    remembers: bool = False

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits  # of a message from the server

    # UnauthorisedError from `introduced` or `decode`: the server wants another token. WireError: no message of this
    # protocol. AnswerError: the server failed, answers another question, or is of no use. LeavingError: it ends.

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


OBSERVATION = "observation"
"""The kind of question that openpi's and vla-eval's servers answer with actions."""
