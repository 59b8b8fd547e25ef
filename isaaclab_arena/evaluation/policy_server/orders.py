"""What a policy server is told when it is started: where to listen, and which networks there are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NetworkOrder:
    """A policy whose network the server is to have.

    Attributes:
        policy_type: Registered name or dotted path of the policy.
        options: What its ``from_dict`` takes.
    """

    policy_type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerOrders:
    """What a server is to do.

    Attributes:
        networks: What may be asked for, by key; loaded when it is.
        max_batch: Entries that are answered together at most.
        max_wait_ms: How long a query waits for others [ms].
        listening: File descriptor of the listening socket.
        token: What an asker has to know.
        torch_threads: Torch threads; as many as ranks have, because the last digits of an answer may depend on it.
        deterministic: Whether torch is to calculate deterministically.
    """

    networks: Mapping[str, NetworkOrder]
    max_batch: int
    max_wait_ms: float
    listening: int = -1
    token: str = ""
    torch_threads: int = 1
    deterministic: bool = False
