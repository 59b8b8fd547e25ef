"""Hold one connection to a policy server for each env slot, and ask all of them at once."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from isaaclab_arena.workers.policy_elsewhere import patience_s
from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.connection import AnswerLostError, PolicyServerConnection
from isaaclab_arena_gr00t.remote.wire.contract import Wire

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
