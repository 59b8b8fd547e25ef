"""Connections to a policy server: time-outs, lost servers and odd answers, over real sockets."""

import socket as sockets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from arena_wire.messages import DEFAULT_LIMITS
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.logs import ended_in
from isaaclab_arena.remote.connection import PolicyServerConnection, ServerUnreachableError, SlotConnections
from isaaclab_arena.remote.openpi import OpenpiRemotePolicyCfg
from isaaclab_arena.remote.protocols import AnswerError, Codec, ServerAddress, identity_line, server_address
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec, Gr00tRemoteClosedloopPolicyArgs
from tests.gr00t.servers import PONG, NetworkPolicy, ServerProcess, answering, serving
from tests.outsiders.peers import DELIMITER, frame, pretending, read_answer


@contextmanager
def connected(port: int, codec: Codec | None = None, **options) -> Iterator[PolicyServerConnection]:
    given = {"host": "127.0.0.1", "timeout_s": 5.0, "wait_for_server_s": 5.0, **options}
    address = ServerAddress(port=port, **given)
    connection = PolicyServerConnection(address, codec or Gr00tCodec(address.api_token))
    try:
        yield connection
    finally:
        connection.close()
        connection.close()


@pytest.mark.parametrize(("host", "says"), [("127.0.0.1", "127.0.0.1:1.*0.2 s"), ("no.such.machine.invalid", "name")])
def test_no_server_is_an_error_within_the_time_that_is_given(host, says):
    unreachable = pytest.raises(ServerUnreachableError, match=says)
    with connected(1, host=host, wait_for_server_s=0.2) as connection, unreachable:
        connection.wait_until_ready()


def test_something_else_that_listens_is_said_to():
    def talk(other: sockets.socket) -> None:
        other.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 10)
        other.recv(1000)

    another = pytest.raises(ServerUnreachableError, match="speak ZeroMQ")
    with pretending(talk, introduce=False) as port, connected(port, wait_for_server_s=0.5) as connection, another:
        connection.wait_until_ready()


def test_a_server_that_was_killed_and_came_back_is_asked_again_and_one_that_stays_away_is_an_error_in_time():
    with ServerProcess() as server, connected(server.port, timeout_s=600.0, wait_for_server_s=1.0) as connection:
        connection.wait_until_ready()
        server.kill()
        # Noticed long before the time-out of the answer: the connection is gone.
        with serving(NetworkPolicy(), port=server.port):
            assert connection.ask("reset", {"options": None}) == {}
        with pytest.raises(ServerUnreachableError):
            connection.ask("reset", {"options": None})


def test_a_server_that_ends_while_it_is_asked_is_waited_for():
    leaving = b"\x81\xa5error\xbbthe server is shutting down"
    with answering(leaving, PONG, b"\x80") as port, connected(port) as connection:
        assert connection.ask("reset", {"options": None}) == {}


def test_a_model_that_takes_too_long_is_an_error_that_says_so():
    with serving(NetworkPolicy()) as server, connected(server.port, timeout_s=0.3) as connection:
        server.register_endpoint("reset", lambda options: time.sleep(0.5))
        with pytest.raises(ServerUnreachableError, match=r"0\.3 s, twice"):
            connection.ask("reset", {"options": None})
        # What it gave up waiting for is not taken for the answer to the next request.
        time.sleep(0.5)
        assert set(connection.ask("get_modality_config")) == {"video", "state", "action", "language"}


def test_a_model_that_takes_too_long_is_lost_before_the_process_would_be_ended(caplog):
    with serving(NetworkPolicy()) as server, connected(server.port, timeout_s=600.0) as connection:
        connection.wait_until_ready()
        server.register_endpoint("reset", lambda options: time.sleep(1.0))
        with ended_in(lambda: 0.4), pytest.raises(ServerUnreachableError):
            connection.ask("reset", {"options": None})
        assert "within 0.2 s" in caplog.text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "no msgpack"),
        (msgpack.packb({"a": {"__ModalityConfig_class__": True, "as_json": None}}), "modality"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_that_says_why(answer, says):
    with answering(answer) as port, connected(port) as connection, pytest.raises(PolicyError, match=f"{port} .*{says}"):
        connection.ask("get_action", {})


def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one():
    def twice(other: sockets.socket) -> None:
        while read_answer(other):
            other.sendall((DELIMITER + frame(PONG)) * 2)

    with pretending(twice) as port, connected(port) as connection, pytest.raises(PolicyError, match="answered twice"):
        connection.ask("get_action", {})


def test_what_cannot_travel_is_refused_before_it_is_sent():
    with answering(PONG) as port, connected(port) as connection, pytest.raises(PolicyError, match="a set may"):
        connection.ask("get_action", {"observation": {1, 2}})


# Where a policy server is, from the options of a job; both policies that ask one are told the same.


OPTIONS = [Gr00tRemoteClosedloopPolicyArgs("policy.yaml"), OpenpiRemotePolicyCfg()]


@pytest.mark.parametrize("options", OPTIONS, ids=["gr00t", "openpi"])
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("remote_port", 70000, "got 70000"),
        ("remote_host", "two words", "got 'two words'"),
        ("timeout_s", 0.0, "got 0"),
        ("wait_for_server_s", float("inf"), "got inf"),
        ("remote_api_token", "sesame", "is refused"),
        ("remote_api_token_file", "none.txt", "No such file"),
        ("remote_api_token_file", "empty.txt", "holds nothing"),
        ("remote_api_token_file", "picture.png", "is no text"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_key(tmp_path, monkeypatch, options, key, value, says):
    def changed(**changes: Any) -> Any:
        return type(options)(**{**vars(options), **changes})

    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n")
    Path("two.txt").write_text("open\nsesame\n")
    Path("picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError) as refused:
        server_address(changed(**{key: value}))
    [problem] = refused.value.problems
    assert problem.key == key
    assert says in problem.message
    assert "sesame" not in str(refused.value)
    Path("token").write_text("sesame\n")
    address = server_address(changed(remote_api_token_file="token"))
    assert address.api_token == "sesame"
    assert "sesame" not in repr(address)


def test_what_a_server_states_is_kept_short_harmless_and_in_order():
    assert identity_line({"b": 1, "a": "x"}) == '{"a": "x", "b": 1}'
    assert identity_line({}) == identity_line("no map") == identity_line(None) == UNKNOWN
    assert "\x1b" not in identity_line({"name": "\x1b[2J", "\x1b": 1})
    long = identity_line({"name": "x" * 100_000})
    assert len(long) < 600
    assert long != identity_line({"name": "x" * 99_999 + "y"})


# All env slots are asked at once, and their answers have one time-out together.


class SlowServer(Codec):
    """Answers each question in its own time, one after the other, and fails over one of them."""

    server, policy_type = "slow server", "slow"

    def __init__(self, *times_s: float, remembers: bool = False, fails_at: int = -1) -> None:
        super().__init__(DEFAULT_LIMITS)
        self.times_s, self.remembers, self.fails_at = list(times_s), remembers, fails_at
        self.asked: list[str] = []

    def introduced(self, said: object) -> None: ...

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        return f"{kind} {(payload or {})['slot']}".encode()

    def decode(self, said: Any) -> str:
        if len(self.asked) == self.fails_at:
            raise AnswerError("no memory left")
        return said.decode()


class SlowChannel:
    def __init__(self, server: SlowServer) -> None:
        self._server = server
        self._said = [b"hello"]

    def send(self, request: bytes, timeout_s: float) -> None:
        if len(self._server.asked) == self._server.fails_at:
            raise ConnectionResetError("gone")
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


def asked(server: SlowServer, *numbers: int) -> list[str]:
    """Ask for so many env slots, once for each number, and return the last answers."""
    address = ServerAddress(host="127.0.0.1", timeout_s=0.25, wait_for_server_s=1.0)
    connections, answers = SlotConnections(address, lambda: server, dial=lambda codec, *_: SlowChannel(codec)), []
    for num_slots in numbers:
        answers = connections.ask("look", ((slot, {"slot": slot}) for slot in range(num_slots)))
    return answers


def test_the_last_answer_has_to_come_no_later_than_the_first():
    server = SlowServer(*[0.01] * 2, *[0.15] * 6, remembers=True)
    with pytest.raises(ServerUnreachableError, match=r"0.25 s"):
        asked(server, 2, 6)
    assert len(server.times_s) >= 4


def test_answers_that_were_late_are_asked_for_once_more_all_at_once():
    server = SlowServer(0.15, 0.15, 0.15, 0.05, 0.05)
    assert asked(server, 3) == ["done"] * 3
    assert server.asked == ["look 0", "look 1", "look 2", "look 1", "look 2"]


def test_what_a_server_says_before_it_ends_is_told_although_a_later_question_found_it_gone():
    server = SlowServer(0.0, 0.0, 0.0, remembers=True, fails_at=3)
    with pytest.raises(PolicyError, match="no memory left"):
        asked(server, 2, 2)
    assert server.asked == ["look 0", "look 1", "look 0"]
