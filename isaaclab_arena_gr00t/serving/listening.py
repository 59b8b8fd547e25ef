"""Say where a policy server listens and to whom, whatever it speaks."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Where a server listens, and to whom.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        api_token: Token that clients must send, None for none.
        max_message_bytes: Largest message of a client.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_token: str | None = field(default=None, repr=False)
    max_message_bytes: int = 64 * 1024 * 1024


class Server(Protocol):
    """A policy server, on threads of its own."""

    @property
    def address(self) -> str:
        """Address for clients."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether it answers; a client or a failure may have ended that."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it answers no more, None where nothing went wrong."""
        ...

    def start(self) -> None:
        """Answer from now on."""
        ...

    def close(self) -> None:
        """Stop, and close the policy. May be called more than once."""
        ...
