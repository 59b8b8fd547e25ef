"""All env slots are asked at once, and their answers have one time-out together."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from arena_wire.messages import DEFAULT_LIMITS
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError, SlotConnections
from isaaclab_arena_gr00t.remote.protocols import Codec, ServerAddress


class SlowServer:
    """Answers a question in its own time; of the questions that are under way, one after the other.

    Args:
        times_s: How long each answer takes, in the order in which they are waited for [s].
    """

    def __init__(self, *times_s: float) -> None:
        self.times_s = list(times_s)
        self.asked: list[str] = []

    def codec(self, *, remembers: bool) -> "SlowCodec":
        return SlowCodec(self, remembers=remembers)


class SlowChannel:
    def __init__(self, server: SlowServer) -> None:
        self._server = server
        self._said = [b"hello"]

    def send(self, request: bytes, timeout_s: float) -> None:
        self._server.asked.append(request.decode())

    def receive(self, timeout_s: float) -> bytes:
        if self._said:
            return self._said.pop()
        takes_s = self._server.times_s.pop(0)
        time.sleep(min(takes_s, timeout_s))
        if takes_s > timeout_s:
            raise TimeoutError
        return b"done"

    def close(self) -> None: ...


class SlowCodec(Codec):
    server, policy_type = "slow server", "slow"

    def __init__(self, server: SlowServer, *, remembers: bool) -> None:
        super().__init__(DEFAULT_LIMITS)
        self._server, self.remembers = server, remembers

    def dial(self, address: ServerAddress, timeout_s: float) -> Any:
        return SlowChannel(self._server)

    def introduced(self, said: object) -> None: ...

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        return f"{kind} {(payload or {})['slot']}".encode()

    def decode(self, said: Any) -> str:
        return said.decode()


def connections(server: SlowServer, *, remembers: bool = False) -> SlotConnections[SlowCodec]:
    address = ServerAddress(host="127.0.0.1", timeout_s=0.5, wait_for_server_s=1.0)
    return SlotConnections(address, lambda: server.codec(remembers=remembers))


def asked(made: SlotConnections[SlowCodec], num_slots: int) -> list[str]:
    return made.ask("look", ((slot, {"slot": slot}) for slot in range(num_slots)))


def test_answers_that_together_come_in_time_are_waited_for():
    assert asked(connections(SlowServer(0.05, 0.05, 0.05)), 3) == ["done"] * 3


def test_the_last_answer_has_to_come_no_later_than_the_first():
    server = SlowServer(*[0.01] * 2, *[0.3] * 6)
    made = connections(server, remembers=True)
    asked(made, 2)
    with pytest.raises(ServerUnreachableError, match=r"it did not answer within 0.5 s"):
        asked(made, 6)
    assert len(server.times_s) >= 4, "at most two of the six were waited for"


def test_answers_that_were_late_are_asked_for_once_more_all_at_once():
    server = SlowServer(0.3, 0.3, 0.3, 0.1, 0.1)
    assert asked(connections(server), 3) == ["done"] * 3
    assert server.asked == ["look 0", "look 1", "look 2", "look 1", "look 2"]
