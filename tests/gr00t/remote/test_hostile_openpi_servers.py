"""Servers that take the place of an openpi server, and answer with what no such server does."""

import time
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.sync.server import ServerConnection

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena import ArenaError
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.remote.connection import PolicyServerConnection, ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION, ServerAddress
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.test_openpi_remote_policy import episodes, policy_at, talking
from tests.outsiders.peers import pretending

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


def answering(*answers: bytes | str) -> Callable[[ServerConnection], None]:
    """Server that introduces itself, receives one observation and answers."""

    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.recv()
        for answer in answers:
            connection.send(answer)

    return talk


@pytest.mark.parametrize("answer", ACTIONS.values(), ids=ACTIONS)
def test_actions_that_are_none_are_an_error_of_the_policy(answer):
    with talking(answering(bytes(msgpack.packb(answer) or b""))) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="openpi"):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


ANSWER = OpenpiCodec.pack({"actions": np.zeros((8, 5))})


@pytest.mark.parametrize(
    ("answers", "says"), [([ANSWER, ANSWER], "answered twice"), ([bytes(32 * 1024 * 1024 + 1)], "33554432")]
)
def test_an_answer_that_comes_twice_or_is_too_large_is_told(answers, says):
    with talking(answering(*answers)) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match=says):
            rollout(LimbEnvironment(1), policy, episodes(4), [])
        policy.close()


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
    with talking(talk) as port:
        policy = policy_at(port, timeout_s=0.3)
        rollout(environment, policy, episodes(1), [])
        policy.close()
    # The first question was asked again, in another connection.
    assert environment.actions[0][0, 0].item() == 2


def test_a_question_that_is_too_large_for_the_server_is_told():
    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.close(1009, "at most 100 bytes")
        connection.recv()

    with talking(talk) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="at most 100"):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


@pytest.mark.parametrize("when", ["introduction", "answer"])
@pytest.mark.parametrize("said", ["\n" + STEERING, STEERING + "x" * 100_000, "\x1b", "\n" * 100_000, ""])
def test_what_a_server_says_steers_no_terminal(when, said):
    talk = answering(said) if when == "answer" else (lambda connection: connection.send(said))
    with talking(talk) as port, pytest.raises(PolicyError) as caught:
        rollout(LimbEnvironment(1), policy_at(port), episodes(1), [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def asked(port: int, **options: Any) -> Any:
    address = ServerAddress(host="127.0.0.1", port=port, **{"timeout_s": 0.4, "wait_for_server_s": 0.2, **options})
    connection = PolicyServerConnection(address, OpenpiCodec(limits=WireLimits(max_message_bytes=1 << 20)))
    try:
        connection.wait_until_ready()
        return connection.ask(OBSERVATION, {"a": 1})
    finally:
        connection.close()


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
