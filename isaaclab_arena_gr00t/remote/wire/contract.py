"""The contract of a protocol of policy servers: what is said first, how questions and answers are written."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from isaaclab_arena_gr00t.remote.address import ServerAddress


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
