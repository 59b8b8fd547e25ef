"""Connections to a policy server: time-outs, lost servers and odd answers, over real sockets."""

import base64
import hashlib
import re
import socket as sockets
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection

from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits
from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.logs import ended_in
from isaaclab_arena.remote import connection as connections
from isaaclab_arena.remote.connection import PolicyServerConnection, ServerUnreachableError, SlotConnections, Websocket
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicyCfg
from isaaclab_arena.remote.protocols import (
    OBSERVATION,
    AnswerError,
    Codec,
    ServerAddress,
    identity_line,
    server_address,
)
from isaaclab_arena.remote.vla_eval import VlaEvalCodec
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec, Gr00tRemoteClosedloopPolicyArgs
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import Model, asking, openpi_at, talking
from tests.gr00t.remote.test_wires import MEGABYTE, STEERING
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


# Servers that speak over a WebSocket, and those that do not come to the point.


PATIENT: dict[str, Any] = {"timeout_s": 60.0, "wait_for_server_s": 60.0}
INTRODUCTION = OpenpiCodec.pack({"policy": "pi"})


# A server that was taken for one of another protocol is named, by every client.


def introducing(connection: ServerConnection) -> None:
    connection.send(INTRODUCTION)
    connection.recv()


def responding(status: HTTPStatus, path: str = ""):
    """Answer the question for a path, or every question, before there is a websocket."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(status, "said\n") if request.path == path or not path else None

    return answer


CODECS: list[type[Codec]] = [Gr00tCodec, OpenpiCodec, VlaEvalCodec]


@contextmanager
def server_of(wire: type[Codec]) -> Iterator[int]:
    if wire is Gr00tCodec:
        with serving(NetworkPolicy()) as server:
            yield server.port
    elif wire is OpenpiCodec:
        with talking(introducing, process_request=responding(HTTPStatus.OK, "/healthz")) as port:
            yield port
    else:
        with talking(Model().talk, process_request=responding(HTTPStatus.OK, "/health")) as port:
            yield port


@pytest.mark.parametrize("server", CODECS)
@pytest.mark.parametrize("client", CODECS)
def test_a_server_of_another_protocol_is_named_with_the_policy_that_asks_it(client, server):
    refusal = pytest.raises(PolicyError, match=f"{client.server}.*policy_type {server.policy_type}")
    told = nullcontext() if client is server else refusal
    with server_of(server) as port, connected(port, client(), **PATIENT) as connection, told:
        connection.wait_until_ready()


def test_a_package_whose_codec_cannot_be_loaded_keeps_no_other_from_being_named(tmp_path, monkeypatch):
    info = tmp_path / "half_installed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-installed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[isaaclab_arena.protocols]\nbroken = half_installed:Codec\n")
    monkeypatch.syspath_prepend(tmp_path)
    with connections.CODECS.restored_afterwards() as known, server_of(OpenpiCodec) as port:
        assert known.names() == ["broken", "gr00t", "openpi", "vla_eval"]
        with connected(port, **PATIENT) as connection, pytest.raises(PolicyError, match="policy_type openpi_remote"):
            connection.wait_until_ready()


@pytest.mark.parametrize("client", [OpenpiCodec, VlaEvalCodec])
@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (HTTPStatus.UNAUTHORIZED, ConfigError, "remote_api_token_file"),
        (HTTPStatus.FORBIDDEN, ConfigError, "remote_api_token_file"),
        # A web server is none, and is waited for.
        (HTTPStatus.NOT_FOUND, ServerUnreachableError, "404"),
    ],
)
def test_a_server_that_lets_no_client_in_is_told_by_its_reason(client, status, error, says):
    options: dict[str, Any] = {"api_token": "a", "wait_for_server_s": 0.2}
    with (
        talking(introducing, process_request=responding(status)) as port,
        connected(port, client(), **options) as connection,
        pytest.raises(error, match=says),
    ):
        connection.wait_until_ready()


def test_a_client_follows_no_server_to_another_address():
    asked = threading.Event()

    with pretending(lambda other: asked.set(), introduce=False) as elsewhere:

        def redirect(other: sockets.socket) -> None:
            other.recv(4096)
            location = f"Location: ws://127.0.0.1:{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
            other.sendall(b"HTTP/1.1 302 Found\r\n" + location.encode())

        told = pytest.raises(ConnectionError, match=f"to ws://127.0.0.1:{elsewhere}/")
        with pretending(redirect, introduce=False) as port, told:
            Websocket(ServerAddress(host="127.0.0.1", port=port), 60.0, numbers_answers=False)
    assert not asked.is_set()


# Servers that take the place of an openpi server, and answer with what no such server does.


def responding_with(*answers: bytes | str) -> Callable[[ServerConnection], None]:
    """Server that introduces itself, receives one observation and answers."""

    def talk(connection: ServerConnection) -> None:
        connection.send(INTRODUCTION)
        connection.recv()
        for answer in answers:
            connection.send(answer)

    return talk


def takes_less(connection: ServerConnection) -> None:
    connection.send(INTRODUCTION)
    connection.close(1009, "at most 100 bytes")
    connection.recv()


ANSWER = OpenpiCodec.pack({"actions": np.zeros((8, 5))})


@pytest.mark.parametrize(
    ("talk", "says"),
    [
        (responding_with(ANSWER, ANSWER), "answered twice"),
        (responding_with(bytes(32 * MEGABYTE + 1)), "33554432"),
        (takes_less, "at most 100"),
    ],
    ids=["twice", "too large", "takes less"],
)
def test_messages_that_are_too_many_or_too_large_are_told(talk, says):
    with asking(openpi_at, talk) as policy, pytest.raises(PolicyError, match=says):
        rollout(LimbEnvironment(1), policy, episodes(4), [])


@pytest.mark.parametrize(("size", "fits"), [(33_554_432, True), (33_554_433, False)])
def test_an_answer_has_at_most_32_mebibytes(size, fits):
    class Sized(bytes):
        def __len__(self) -> int:
            return size

    with pytest.raises(WireError, match="no msgpack" if fits else "at most 33554432"):
        OpenpiCodec().decode(Sized(b"\xc1"))


@pytest.mark.parametrize("when", ["introduction", "answer"])
@pytest.mark.parametrize("said", ["\n" + STEERING, STEERING + "x" * 100_000, "\x1b", "\n" * 100_000, ""])
def test_what_a_server_says_steers_no_terminal(when, said):
    talk = responding_with(said) if when == "answer" else (lambda connection: connection.send(said))
    with talking(talk) as port, pytest.raises(PolicyError) as caught:
        rollout(LimbEnvironment(1), openpi_at(port), episodes(1), [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


# What comes byte by byte, in place of an introduction or of the handshake before it.


def upgrade(other: sockets.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request and (piece := other.recv(4096)):
        request += piece
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    if found is None:
        raise ConnectionResetError("the client has left")
    accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    other.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def test_a_server_that_reads_slowly_holds_no_question_beyond_its_time():
    stop = threading.Event()

    def talk(other: sockets.socket) -> None:
        upgrade(other)
        stop.wait(60.0)

    with pretending(talk, introduce=False) as port:
        websocket = Websocket(ServerAddress(host="127.0.0.1", port=port), 60.0, numbers_answers=True)
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            websocket.send(bytes(64_000_000), 0.2)
        websocket.close()
        stop.set()


def websocket_frame(data: bytes, *, first: bool = True, last: bool, compressed: bool = False) -> bytes:
    flags = (0x80 if last else 0) | (0x40 if compressed else 0) | (0x02 if first else 0)
    return bytes((flags, 127)) + len(data).to_bytes(8) + data


def squeezed() -> bytes:
    """100 MB as 100 kB, although there is no agreement on that."""
    squeezer = zlib.compressobj(wbits=-15)
    return b"".join([*(squeezer.compress(bytes(MEGABYTE)) for _ in range(100)), squeezer.flush(zlib.Z_SYNC_FLUSH)])


BEGINNING = websocket_frame(b"a", last=False)
DRIPS = websocket_frame(INTRODUCTION + bytes(100), last=True)
STARTED = b"HTTP/1.1 200 OK\r\n"
# What is sent after the handshake.
FRAMES: dict[str, Callable[[], Iterable[bytes]]] = {
    "pings": lambda: repeat(1000 * (b"\x89\x7d" + bytes(125))),
    "empty fragments": lambda: chain([BEGINNING], repeat(1000 * b"\x00\x00")),
    "large fragments": lambda: chain([BEGINNING], repeat(websocket_frame(bytes(MEGABYTE), first=False, last=False))),
    "compressed": lambda: [websocket_frame(squeezed(), last=True, compressed=True)],
    "a promise of four exabytes": lambda: [bytes((0x82, 127)) + (1 << 62).to_bytes(8) + b"abc"],
    "one large frame": lambda: [websocket_frame(bytes(8 * MEGABYTE), last=True)],
    "drips": lambda: (bytes((byte,)) for byte in DRIPS if time.sleep(0.02) is None),
    "leaves within a frame": lambda: [websocket_frame(bytes(100), last=True)[:30]],
    "silence": lambda: (b"" for _ in range(1) if time.sleep(0.8) is None),
}
# What is sent in its place.
HANDSHAKES: dict[str, Callable[[], Iterable[bytes]]] = {
    "headers": lambda: chain([STARTED], repeat(1000 * b"A: b\r\n")),
    "no upgrade": lambda: [STARTED + b"\r\n"],
    "steering": lambda: [b"HTTP/1.1 500 " + STEERING.encode() + b"\r\n\r\n"],
    "elsewhere": lambda: [b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\x1b[2J\r\n\r\n"],
    "no line": lambda: [b"x" * MEGABYTE],
    "nothing": list,
}


@pytest.mark.parametrize(
    ("upgraded", "pieces"),
    [*((True, each) for each in FRAMES.values()), *((False, each) for each in HANDSHAKES.values())],
    ids=[*FRAMES, *HANDSHAKES],
)
def test_a_server_that_does_not_come_to_the_point_is_an_error_in_time_and_fills_no_memory(upgraded, pieces, capfd):
    def talk(other: sockets.socket) -> None:
        upgrade(other) if upgraded else other.recv(4096)
        for piece in pieces():
            other.sendall(piece)

    def asked(port: int) -> None:
        codec = OpenpiCodec(limits=WireLimits(max_message_bytes=MEGABYTE))
        with connected(port, codec, timeout_s=0.4, wait_for_server_s=0.2) as connection:
            connection.wait_until_ready()
            connection.ask(OBSERVATION, {"a": 1})

    with pretending(talk, introduce=False) as port:
        tracemalloc.start()
        with pytest.raises(ArenaError) as caught:
            asked(port)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(caught.value).isprintable()
    # The server's own pieces are counted too.
    assert peak < 24 * MEGABYTE
    threads = [each for each in threading.enumerate() if "recv_events" in each.name]
    for each in threads:
        each.join(60.0)
    assert not any(each.is_alive() for each in threads)
    assert capfd.readouterr().err == ""
