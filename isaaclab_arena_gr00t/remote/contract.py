"""The contract of a protocol of policy servers, their addresses, and what they declare of themselves."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
    """A policy server, with its time limits.

    Attributes:
        host: Its machine.
        port: Its port.
        api_token: Its token, None if it needs none.
        timeout_s: How long an answer may take [s].
        wait_for_server_s: How long to wait for a server that is not there, at the start or later [s].
    """

    host: str = "localhost"
    port: int = 5555
    api_token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    wait_for_server_s: float = 60.0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def server_address(options: ServerOptions) -> ServerAddress:
    """Return the address of the server.

    Raises:
        ConfigError: With every wrong option.
    """
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
    """Return the problems of the options for the server.

    A token among the options is refused, because a run writes the options of its jobs into its output.
    """
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


# The contract of a protocol of policy servers: what is said first, how questions and answers are written.


class AnswerError(Exception):
    """A server's answer that cannot be used. Its text goes on after the server's name and address."""


class UnauthorisedError(Exception):
    """The server wants another token; the text is what it says."""


class LeavingError(OSError):
    """The server says that it ends."""


class Channel(Protocol):
    """A connection that carries messages, within limits of time and size. It belongs to one thread.

    After any error it must be closed, because what comes late would be taken for the answer to the next question.
    """

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message.

        Raises:
            OSError: If the connection is lost, or it takes longer than ``timeout_s``.
            WireError: If the server has sent what it was not asked for.
        """
        ...

    def receive(self, timeout_s: float) -> str | bytes | bytearray:
        """Return the next message.

        Raises:
            OSError: If the connection is lost, or it takes longer than ``timeout_s``.
            WireError: If it is too large.
        """
        ...

    def close(self) -> None:
        """Close it. May be called more than once."""
        ...


class Wire(ABC):
    """One protocol, as one connection speaks it. Time-outs, reconnecting and messages for users are not its business.

    Attributes:
        server: What its servers are called in messages.
        policy_type: The policy that asks such a server.
        scheme: What stands before an address.
        remembers: Whether the server remembers what it was shown in a connection, so that an episode which it has
            answered once cannot go on in another one.
    """

    server: ClassVar[str]
    policy_type: ClassVar[str]
    scheme: ClassVar[str] = ""
    remembers: bool = False

    def advice(self, address: ServerAddress) -> str:
        """Return what goes on after the message that no server answers: how to start one."""
        del address
        return ""

    @abstractmethod
    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Return a new connection.

        Raises:
            OSError: If there is none within ``timeout_s``.
            UnicodeError: If the host is not a valid name.
            UnauthorisedError: If the server wants another token.
        """

    @abstractmethod
    def greeting(self) -> bytes | None:
        """Return what is said to a server first, None if it speaks first."""

    @abstractmethod
    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return how a server describes itself in its first message, None if it does not.

        Raises:
            WireError: If it is no message of this protocol.
            AnswerError: If it cannot be worked with.
            UnauthorisedError: If it wants another token.
        """

    @abstractmethod
    def question(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message to the server.

        Raises:
            WireError: If it holds what cannot travel.
        """

    @abstractmethod
    def answer(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last question.

        Raises:
            WireError: If it is no message of this protocol.
            AnswerError: If the server failed, or answers another question.
            UnauthorisedError: If it wants another token.
            LeavingError: If the server ends.
        """


# Compare what a server declares of itself with what it is shown and what the environment takes.

_PICTURE = "rgb_hwc_uint8"
_LANGUAGE = "language"


def spec_problems(
    action_spec: Mapping[str, Any],
    observation_spec: Mapping[str, Any],
    *,
    num_pictures: int,
    num_states: int,
    action_dim: int | None,
) -> list[Problem]:
    """Return where the hello of a vla-eval model server contradicts that.

    Names are not compared: servers call a picture ``image`` whatever its key, and take the first one. Some declare only
    a part of their action, so an action that is declared too small is no problem.

    Args:
        action_spec: The parts of the server's action; ``dims`` of each are its numbers, 0 where it does not say.
        observation_spec: What the server wants to be shown; ``format`` of each says what it is.
        num_pictures: Pictures that it is shown.
        num_states: Arrays that it is shown.
        action_dim: Numbers of the environment's action, None where the job chooses some of the server's.
    """
    formats = {str(name): _entry(part, "format", "") for name, part in observation_spec.items()}
    pictures = [name for name, form in formats.items() if form == _PICTURE]
    states = [name for name, form in formats.items() if form not in (_PICTURE, _LANGUAGE)]
    dims = [_entry(part, "dims", 0) for part in action_spec.values()]
    problems = []
    if len(pictures) > num_pictures:
        message = f"the server wants {len(pictures)} pictures ({_listed(pictures)}), and is shown {num_pictures}"
        problems.append(Problem(message, key="images"))
    if states and not num_states:
        problems.append(Problem(f"the server wants {_listed(states)}, and is shown pictures alone", key="states"))
    if action_dim is not None and all(dims) and sum(dims) > action_dim:
        parts = _listed(list(action_spec))
        message = (
            f"the server's action has {sum(dims)} numbers ({parts}), the environment's {action_dim}; say which to take"
        )
        problems.append(Problem(message, key="action_columns"))
    return problems


def metadata_problems(
    metadata: Mapping[str, Any],
    *,
    expected: Mapping[str, Any],
    image_size: Sequence[int] | None,
    num_steps: int,
    action_dim: int,
    columns: Sequence[int] | None,
) -> list[Problem]:
    """Return where an openpi server's metadata contradicts that.

    openpi prescribes no names. Compared are those that the job gives, and those that servers are known to use.

    Args:
        metadata: What the server said of itself.
        expected: What the job wants it to say.
        image_size: Height and width of the pictures that it is shown, None for no pictures.
        num_steps: Steps that are played of an answer.
        action_dim: Numbers of the environment's action.
        columns: Which numbers of the server's action they are, None if both are the same.
    """
    problems = [
        Problem(f"the server says {metadata.get(name)!r:.100}, {value!r:.100} is due", key=f"server_metadata.{name}")
        for name, value in expected.items()
        if _plain(metadata.get(name)) != _plain(value)
    ]
    resolution, horizon, dims = (metadata.get(name) for name in ("image_resolution", "action_horizon", "action_dim"))
    if image_size is not None and isinstance(resolution, (list, tuple)) and list(resolution) != list(image_size):
        message = f"the server wants pictures of {list(resolution)!r:.100}, and is shown {list(image_size)}"
        problems.append(Problem(message, key="image_size"))
    if type(horizon) is int and num_steps > horizon:
        message = f"the server answers with {horizon} steps, {num_steps} are to be played"
        problems.append(Problem(message, key="action_chunk_length"))
    if type(dims) is int and (dims != action_dim if columns is None else dims <= max(columns)):
        wanted = (
            f"the environment's {action_dim}; say which to take" if columns is None else f"no column {max(columns)}"
        )
        message = f"the server's action has {dims} numbers, {wanted}"
        problems.append(Problem(message, key="action_columns"))
    return problems


def _plain(value: Any) -> Any:
    """Return lists for tuples, which travel as lists."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _entry(part: object, name: str, default: Any) -> Any:
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if type(value) is type(default) else default


def _listed(names: list[Any]) -> str:
    return f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"[:200]


# Write a policy server's description of its model, in one line.

_MAX_LENGTH = 400


def identity_line(stated: object) -> str:
    """Return a server's description as a line of JSON; `UNKNOWN` if it gives none.

    Args:
        stated: The description by any server; a long one is cut, with a hash of the whole.
    """
    if not isinstance(stated, Mapping) or not stated:
        return UNKNOWN
    line = json_line({str(name): stated[name] for name in sorted(stated, key=str)})
    if len(line) <= _MAX_LENGTH:
        return line
    return f"{line[:_MAX_LENGTH]}… (SHA-256 {hashlib.sha256(line.encode()).hexdigest()})"
