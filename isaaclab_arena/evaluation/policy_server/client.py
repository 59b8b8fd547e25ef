"""Stand for a network in the run's policy server, as a rank asks it."""

import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.policy_server import wire
from isaaclab_arena.evaluation.policy_server.batching import SoFar
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.interfaces.policy_traits import Entries
from isaaclab_arena.storage.run.job_reports import ServerUsage
from isaaclab_arena.workers.policy_elsewhere import PolicyElsewhere, patience_s
from isaaclab_arena.workers.program.frames import FrameError

_CONNECT_TIMEOUT_S = 20.0
_LOAD_TIMEOUT_S = 3600.0
"""How long a server may take to load a network [s]."""
ANSWER_TIMEOUT_S = 300.0
"""How long an answer may take [s]."""
_Query = tuple[dict[str, Any], dict[str, np.ndarray]]
_Answer = tuple[ServerUsage, dict[str, np.ndarray]]

_MOST_LOSSES = 3
"""How often the server may be lost over one query."""


class ServedNetwork:
    """Asks a network in a policy server. It connects when it is first asked, and again where the server was lost.

    To ask again is safe: the network keeps nothing between calls, so the same query has the same answer. Nothing
    that a policy remembers is in the server.

    Args:
        address: Where the server listens.
        key: Which of its networks.
        answer_timeout_s: How long an answer may take [s].

    Attributes:
        usage: What the queries took of the server so far.

    Raises:
        ConfigError: If the server cannot load the network because of what the job says.
        PolicyError: If it cannot load it for another reason.
        DistributedError: If the rank that ran the server is gone.
    """

    def __init__(self, address: ServerAddress, key: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._address, self._key, self._answer_timeout_s = address, key, answer_timeout_s
        self._connection: socket.socket | None = None
        self._elsewhere = PolicyElsewhere[Mapping[str, Any]](
            f"the policy server at {address}", most_losses=_MOST_LOSSES
        )
        self._number = 0
        self.usage = ServerUsage()
        self._seen: SoFar | None = None
        self.max_batch = 1
        self._exchange(None)

    @property
    def about(self) -> Mapping[str, Any]:
        """What the network says of itself."""
        return self._elsewhere.stated or {}

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        """Return the answers by name; see `NetworkElsewhere.ask`."""
        texts, arrays = wire.split(entries)
        self._number += 1
        query = {"number": self._number, "slots_per_call": slots_per_call, "texts": texts}
        usage, answers = self._exchange((query, arrays))
        self.usage += usage
        return answers

    def look_away(self) -> None:
        """Count nothing of what the server does for others until the next answer."""
        self._seen = None

    def close(self) -> None:
        """Close the connection; a later query opens another."""
        self.look_away()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, query: _Query | None) -> _Answer:
        """Return what a query took and its answers; for None, only see to it that there is a connection."""
        try:
            return self._elsewhere.asked(
                lambda: self._tried(query),
                (OSError, EOFError),
                comes_back=lambda error: not isinstance(error, TimeoutError),
            )
        except (FrameError, KeyError, TypeError) as error:
            raise PolicyError(f"{self._elsewhere.name} answered nonsense: {error}") from error

    def _tried(self, query: _Query | None) -> _Answer:
        try:
            return self._ask_once(query)
        except Exception:
            # What comes late would be taken for the answer to the next query.
            self.close()
            raise

    def _ask_once(self, query: _Query | None) -> _Answer:
        if self._connection is None:
            self._connection = self._connected()
            self._meet(self._connection)
        if query is None:
            return ServerUsage(), {}
        wire.send(self._connection, *query)
        said, arrays = self._heard(self._connection, patience_s(self._answer_timeout_s))
        if said["number"] != query[0]["number"]:
            raise FrameError(f"the answer to query {said['number']} came to query {query[0]['number']}")
        return ServerUsage(**said["usage"]) + self._seen_since(SoFar(**said["so_far"])), arrays

    def _seen_since(self, now: SoFar) -> ServerUsage:
        """Return what the server has done for everybody since the last answer."""
        before, self._seen = self._seen or now, now
        return ServerUsage(
            seen_s=now.at_s - before.at_s,
            seen_busy_s=now.busy_s - before.busy_s,
            seen_entries=now.entries - before.entries,
        )

    def _meet(self, connection: socket.socket) -> None:
        """Name the network, and hear about it; another one than before is refused."""
        wire.send(connection, {"hello": wire.VERSION, "token": self._address.token, "network": self._key})
        said, _ = self._heard(connection, patience_s(_LOAD_TIMEOUT_S))
        self._elsewhere.meet(said["about"])
        self.max_batch = said["max_batch"]

    def _connected(self) -> socket.socket:
        try:
            return self._address.connected(_CONNECT_TIMEOUT_S)
        except OSError as error:
            # The rank that started the server listens as long as it lives, also while the server is started again. Its
            # end is no error of the episodes under way: they stay missing, and a later attempt runs them.
            message = f"the rank that ran the policy server at {self._address} is gone ({error.strerror or error})"
            raise DistributedError(message) from error

    def _heard(self, connection: socket.socket, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        said, arrays = wire.received(connection, timeout_s=timeout_s)
        if "error" in said:
            raise wire.ERRORS[said["kind"]](f"in the policy server: {said['error']}")
        return said, arrays
