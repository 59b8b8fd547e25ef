"""Servers that speak over a WebSocket."""

import base64
import hashlib
import re
import socket as sockets
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidMessage, ProtocolError, WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.sync import client
from websockets.sync.server import ServerConnection

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena import ArenaError
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.remote import connection as connections
from isaaclab_arena.remote.connection import ServerUnreachableError, Websocket
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION, Codec, ServerAddress
from isaaclab_arena.remote.vla_eval import VlaEvalCodec
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import Model, asking, talking
from tests.gr00t.policy.test_openpi_remote_policy import policy_at
from tests.gr00t.remote.test_connection import connected
from tests.gr00t.servers import NetworkPolicy, serving
from tests.outsiders.peers import pretending

# A websocket to a policy server, which may end while it is dialled, or send what no such server does.


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(ConnectionClosedError(None, None), id="before the handshake was sent"),
        pytest.param(InvalidMessage("did not receive a valid HTTP response"), id="before it was answered"),
        pytest.param(ProtocolError("what came is no frame"), id="after it was answered"),
    ],
)
def test_a_server_that_ends_while_it_is_dialled_is_a_lost_connection_at_any_moment(monkeypatch, end):
    def connect(url: str, **options: object) -> None:
        raise end

    monkeypatch.setattr(client, "connect", connect)
    assert isinstance(end, WebSocketException)
    with listening(lambda other: None) as address, pytest.raises(ConnectionError, match="refuses"):
        Websocket(address, 60.0, numbers_answers=False)


@contextmanager
def listening(talk: Callable[[sockets.socket], None]) -> Iterator[ServerAddress]:
    """Talk to each client, until that fails, and keep the connection open to the end."""
    with sockets.create_server(("127.0.0.1", 0)) as listener, suppress(OSError):
        # What is not read soon fills the connection.
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        others: list[sockets.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    others.append(listener.accept()[0])
                    with suppress(OSError):
                        talk(others[-1])

        threading.Thread(target=serve, daemon=True).start()
        yield ServerAddress(host="127.0.0.1", port=listener.getsockname()[1])
        for each in [listener, *others]:
            with suppress(OSError):
                each.shutdown(sockets.SHUT_RDWR)
        for each in others:
            each.close()


def upgrade(other: sockets.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += other.recv(4096)
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    assert found is not None
    accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    other.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def without_end(data: bytes, *, first: bytes = b"", upgraded: bool = True) -> Callable[[sockets.socket], None]:
    """Server that sends the same bytes forever and reads nothing."""

    def talk(other: sockets.socket) -> None:
        if upgraded:
            upgrade(other)
        other.sendall(first)
        while True:
            other.sendall(data * 1000)

    return talk


PING, FRAGMENT, EMPTY_FRAGMENT = b"\x89\x7d" + bytes(125), b"\x00\x01a", b"\x00\x00"
SQUEEZED = b"\xc2\x7e\x20\x00" + bytes(0x2000)


def ask(address: ServerAddress) -> None:
    websocket = Websocket(address, 1.0, numbers_answers=False)
    try:
        websocket.receive(1.0)
    finally:
        websocket.close()


@pytest.mark.parametrize(
    "talk",
    [
        without_end(PING),
        without_end(FRAGMENT, first=b"\x02\x01a"),
        without_end(EMPTY_FRAGMENT, first=b"\x02\x01a"),
        without_end(SQUEEZED),
        without_end(b"A: b\r\n", first=b"HTTP/1.1 200 OK\r\n", upgraded=False),
        without_end(b"x" * 100, first=b"HTTP/1.1 200 OK\r\n\r\n", upgraded=False),
    ],
    ids=["pings", "fragments", "empty fragments", "compressed", "headers", "body"],
)
def test_a_server_that_sends_without_end_and_reads_nothing_is_an_error_without_a_traceback(talk, capfd):
    with listening(talk) as address:
        with pytest.raises((OSError, WireError)):
            ask(address)
        threads = [each for each in threading.enumerate() if "recv_events" in each.name]
        for each in threads:
            each.join(60.0)
        assert not any(each.is_alive() for each in threads)
    assert capfd.readouterr().err == ""


def test_a_server_that_reads_slowly_holds_no_question_beyond_its_time():
    def talk(other: sockets.socket) -> None:
        upgrade(other)
        stop.wait(60.0)

    stop = threading.Event()
    with listening(talk) as address:
        websocket = Websocket(address, 60.0, numbers_answers=True)
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            websocket.send(bytes(64_000_000), 0.2)
        websocket.close()
        stop.set()


def test_a_client_follows_no_server_to_another_address():
    asked = threading.Event()

    def elsewhere(other: sockets.socket) -> None:
        asked.set()

    with listening(elsewhere) as other:

        def redirect(connection: sockets.socket) -> None:
            connection.recv(4096)
            connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: ws://{other}/\r\nContent-Length: 0\r\n\r\n".encode())

        with listening(redirect) as address, pytest.raises(ConnectionError, match=f"it sends clients to ws://{other}/"):
            Websocket(address, 60.0, numbers_answers=False)
    assert not asked.is_set()


# A server that was taken for one of another protocol is named, by every client.


def introducing(connection: ServerConnection) -> None:
    connection.send(OpenpiCodec.pack({"policy": "pi"}))
    connection.recv()


def answering(status: HTTPStatus, path: str = ""):
    """Answer the question for a path, or every question, before there is a websocket."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(status, "said\n") if request.path == path or not path else None

    return answer


PATIENT: dict[str, Any] = {"timeout_s": 60.0, "wait_for_server_s": 60.0}
CODECS: list[type[Codec]] = [Gr00tCodec, OpenpiCodec, VlaEvalCodec]


@contextmanager
def server_of(wire: type[Codec]) -> Iterator[int]:
    if wire is Gr00tCodec:
        with serving(NetworkPolicy()) as server:
            yield server.port
    elif wire is OpenpiCodec:
        with talking(introducing, process_request=answering(HTTPStatus.OK, "/healthz")) as port:
            yield port
    else:
        with talking(Model().talk, process_request=answering(HTTPStatus.OK, "/health")) as port:
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


def test_a_server_that_has_no_time_for_a_second_client_is_named_too():
    others: list[ServerConnection] = []

    def refuse(connection: ServerConnection) -> None:
        others.append(connection)
        connection.send("no vla-eval here")
        for _ in connection:
            pass

    def idle(connection: ServerConnection, request: Request) -> Response | None:
        is_busy = any(client.protocol.state is State.OPEN for client in others)
        return None if is_busy else answering(HTTPStatus.OK, "/healthz")(connection, request)

    told = pytest.raises(PolicyError, match="policy_type openpi_remote")
    with talking(refuse, process_request=idle) as port, connected(port, VlaEvalCodec(), **PATIENT) as connection, told:
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
        talking(introducing, process_request=answering(status)) as port,
        connected(port, client(), **options) as connection,
        pytest.raises(error, match=says),
    ):
        connection.wait_until_ready()


# Servers that take the place of an openpi server, and answer with what no such server does.


STEERING = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil"
BINARY, CONTINUED = 0x02, 0x00


def array(data: bytes = bytes(160), dtype: str = "<f4", shape: tuple[int, ...] = (8, 5)) -> dict[str, Any]:
    return {"actions": {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": list(shape)}}


ACTIONS: dict[str, Any] = {
    "nothing": {},
    "a list": {"actions": [[0.0] * 5] * 8},
    "text": {"actions": "go"},
    "one dimension": array(shape=(40,)),
    "no steps": array(b"", shape=(0, 5)),
    "no numbers": array(b"", shape=(8, 0)),
    "huge, declared small": array(bytes(4_000_000)),
    "small, declared huge": array(shape=(2**40, 2**40)),
    "negative": array(shape=(-8, -5)),
    "seventy dimensions": array(shape=(1,) * 70),
    "objects": array(bytes(320), "|O"),
    "dates": array(bytes(320), "<M8[s]"),
    "a structure": array(bytes(320), "f4,f4"),
    "not a number": array(np.full(40, np.nan, np.float32).tobytes()),
    "infinite": array(np.full(40, -np.inf, np.float32).tobytes()),
    "beyond float32": array(np.full(40, 1e300).tobytes(), "<f8"),
    "a list itself": [1, 2],
    "a number": 7,
    "nil": None,
}


def answering_with(*answers: bytes | str) -> Callable[[ServerConnection], None]:
    """Server that introduces itself, receives one observation and answers."""

    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.recv()
        for answer in answers:
            connection.send(answer)

    return talk


@pytest.mark.parametrize("answer", ACTIONS.values(), ids=ACTIONS)
def test_actions_that_are_none_are_an_error_of_the_policy(answer):
    talk = answering_with(bytes(msgpack.packb(answer) or b""))
    with asking(policy_at, talk) as policy, pytest.raises(PolicyError, match="openpi"):
        rollout(LimbEnvironment(1), policy, episodes(1), [])


ANSWER = OpenpiCodec.pack({"actions": np.zeros((8, 5))})


@pytest.mark.parametrize(
    ("answers", "says"), [([ANSWER, ANSWER], "answered twice"), ([bytes(32 * 1024 * 1024 + 1)], "33554432")]
)
def test_an_answer_that_comes_twice_or_is_too_large_is_told(answers, says):
    with asking(policy_at, answering_with(*answers)) as policy, pytest.raises(PolicyError, match=says):
        rollout(LimbEnvironment(1), policy, episodes(4), [])


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one():
    num_asked = 0

    def talk(connection: ServerConnection) -> None:
        nonlocal num_asked
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        while True:
            connection.recv()
            num_asked += 1
            actions = np.full((8, 5), num_asked)
            time.sleep(0.5 if num_asked == 1 else 0.0)
            connection.send(OpenpiCodec.pack({"actions": actions}))

    environment = LimbEnvironment(1)
    with asking(policy_at, talk, timeout_s=0.3) as policy:
        rollout(environment, policy, episodes(1), [])
    # The first question was asked again, in another connection.
    assert environment.actions[0][0, 0].item() == 2


def test_a_question_that_is_too_large_for_the_server_is_told():
    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.close(1009, "at most 100 bytes")
        connection.recv()

    with asking(policy_at, talk) as policy, pytest.raises(PolicyError, match="at most 100"):
        rollout(LimbEnvironment(1), policy, episodes(1), [])


@pytest.mark.parametrize("when", ["introduction", "answer"])
@pytest.mark.parametrize("said", ["\n" + STEERING, STEERING + "x" * 100_000, "\x1b", "\n" * 100_000, ""])
def test_what_a_server_says_steers_no_terminal(when, said):
    talk = answering_with(said) if when == "answer" else (lambda connection: connection.send(said))
    with talking(talk) as port, pytest.raises(PolicyError) as caught:
        rollout(LimbEnvironment(1), policy_at(port), episodes(1), [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def asked(port: int) -> Any:
    codec = OpenpiCodec(limits=WireLimits(max_message_bytes=1 << 20))
    with connected(port, codec, timeout_s=0.4, wait_for_server_s=0.2) as connection:
        connection.wait_until_ready()
        return connection.ask(OBSERVATION, {"a": 1})


@pytest.mark.parametrize(("size", "fits"), [(33_554_432, True), (33_554_433, False)])
def test_an_answer_has_at_most_32_mebibytes(size, fits):
    class Sized(bytes):
        def __len__(self) -> int:
            return size

    with pytest.raises(WireError, match="no msgpack" if fits else "at most 33554432"):
        OpenpiCodec().decode(Sized(b"\xc1"))


def websocket_frame(data: bytes, opcode: int, *, last: bool, compressed: bool = False) -> bytes:
    return bytes(((0x80 if last else 0) | (0x40 if compressed else 0) | opcode, 127)) + len(data).to_bytes(8) + data


PIECE = bytes(1 << 20)


def squeezed() -> bytes:
    """100 MB as 100 kB, although there is no agreement on that."""
    squeezer = zlib.compressobj(wbits=-15)
    return b"".join([*(squeezer.compress(PIECE) for _ in range(100)), squeezer.flush(zlib.Z_SYNC_FLUSH)])


LONG: dict[str, Callable[[], list[bytes]]] = {
    "40 MB in pieces": lambda: [
        websocket_frame(PIECE, BINARY, last=False),
        *[websocket_frame(PIECE, CONTINUED, last=False)] * 40,
    ],
    "empty pieces": lambda: [websocket_frame(b"a", BINARY, last=False), *[b"\x00\x00" * 100] * 2000],
    "compressed": lambda: [websocket_frame(squeezed(), BINARY, last=True, compressed=True)],
    "a promise of four exabytes": lambda: [bytes((0x82, 127)) + (1 << 62).to_bytes(8) + b"abc"],
    "one large frame": lambda: [websocket_frame(bytes(8 << 20), BINARY, last=True)],
}


@pytest.mark.parametrize("pieces", LONG.values(), ids=LONG)
def test_an_introduction_without_end_fills_no_memory(pieces):
    def talk(connection: ServerConnection) -> None:
        for piece in pieces():
            connection.socket.sendall(piece)
        time.sleep(0.2)

    with talking(talk) as port:
        tracemalloc.start()
        with pytest.raises((PolicyError, ServerUnreachableError)):
            asked(port)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The server's own pieces are counted too.
    assert peak < 24 << 20


DRIPS = websocket_frame(OpenpiCodec.pack({"policy": "pi"}) + bytes(100), BINARY, last=True)
# What comes, how long the server waits after each piece, and how long before it leaves [s].
POINTLESS: dict[str, tuple[list[bytes], float, float]] = {
    "drips": ([bytes((byte,)) for byte in DRIPS], 0.02, 0.0),
    "pings": ([b"\x89\x7d" + bytes(125)] * 3000, 0.0, 0.0),
    "leaves within a frame": ([websocket_frame(bytes(100), BINARY, last=True)[:30]], 0.0, 0.0),
    "no frames": ([b"\xff" * 1000], 0.0, 0.0),
    "silence": ([], 0.0, 0.8),
}


@pytest.mark.parametrize(("pieces", "pause_s", "stays_s"), POINTLESS.values(), ids=POINTLESS)
def test_a_server_that_does_not_come_to_the_point_is_an_error_in_time(pieces, pause_s, stays_s):
    def talk(connection: ServerConnection) -> None:
        for piece in pieces:
            connection.socket.sendall(piece)
            time.sleep(pause_s)
        time.sleep(stays_s)
        connection.socket.close()

    with talking(talk) as port, pytest.raises((PolicyError, ServerUnreachableError)) as caught:
        asked(port)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 500 " + STEERING.encode() + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\x1b[2J\r\n\r\n",
        b"HTTP/1.1 101 x\r\n" + b"A: b\r\n" * 100_000,
        b"x" * 1_000_000,
        b"",
    ],
    ids=["no upgrade", "half an upgrade", "steering", "elsewhere", "headers", "no line", "silence"],
)
def test_an_upgrade_that_is_none_is_an_error_in_time(said):
    def talk(other):
        other.recv(1000)
        other.sendall(said)

    with pretending(talk, introduce=False) as port, pytest.raises(ArenaError) as caught:
        asked(port)
    assert str(caught.value).isprintable()
