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
from isaaclab_arena_gr00t.remote.connection import PolicyServerConnection, ServerUnreachableError
from isaaclab_arena_gr00t.remote.protocols import OBSERVATION, OpenpiCodec, ServerAddress
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.test_openpi_remote_policy import episodes, policy_at, talking
from tests.outsiders.peers import pretending

STEERING = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil"
BINARY, CONTINUED = 0x02, 0x00


def array() -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": bytes(160), b"dtype": "<f4", b"shape": [8, 5]}


ACTIONS = {
    "nothing": {},
    "a list": {"actions": [[0.0] * 5] * 8},
    "text": {"actions": "go"},
    "one dimension": {"actions": array() | {b"shape": [40]}},
    "no steps": {"actions": array() | {b"shape": [0, 5], b"data": b""}},
    "no numbers": {"actions": array() | {b"shape": [8, 0], b"data": b""}},
    "huge, declared small": {"actions": array() | {b"data": bytes(4_000_000)}},
    "small, declared huge": {"actions": array() | {b"shape": [2**40, 2**40]}},
    "negative": {"actions": array() | {b"shape": [-8, -5]}},
    "seventy dimensions": {"actions": array() | {b"shape": [1] * 70}},
    "objects": {"actions": array() | {b"dtype": "|O", b"data": bytes(320)}},
    "dates": {"actions": array() | {b"dtype": "<M8[s]", b"data": bytes(320)}},
    "a structure": {"actions": array() | {b"dtype": "f4,f4", b"data": bytes(320)}},
    "not a number": {"actions": array() | {b"data": np.full(40, np.nan, np.float32).tobytes()}},
    "infinite": {"actions": array() | {b"data": np.full(40, -np.inf, np.float32).tobytes()}},
    "beyond float32": {"actions": array() | {b"dtype": "<f8", b"data": np.full(40, 1e300).tobytes()}},
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


def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one():
    answer = OpenpiCodec.pack({"actions": np.zeros((8, 5))})
    with talking(answering(answer, answer)) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="it answered twice, or what it was not asked"):
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
            time.sleep(1.5 if num_asked == 1 else 0.0)
            connection.send(OpenpiCodec.pack({"actions": actions}))

    environment = LimbEnvironment(1)
    with talking(talk) as port:
        policy = policy_at(port, timeout_s=1.0)
        rollout(environment, policy, episodes(1), [])
        policy.close()
    # The first question was asked again, in another connection.
    assert environment.actions[0][0, 0].item() == 2


def test_an_answer_that_is_too_large_is_told_with_the_limit():
    with talking(answering(bytes(32 * 1024 * 1024 + 1))) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="the answer has more bytes than the 33554432 that are allowed"):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


def test_a_question_that_is_too_large_for_the_server_is_told():
    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.close(1009, "at most 100 bytes")
        connection.recv()

    with talking(talk) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match=r"it takes no message as large as this one .*at most 100"):
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
    address = ServerAddress(host="127.0.0.1", port=port, **{"timeout_s": 0.6, "wait_for_server_s": 0.3, **options})
    connection = PolicyServerConnection(address, OpenpiCodec(limits=WireLimits(max_message_bytes=1 << 20)))
    try:
        connection.wait_until_ready()
        return connection.ask(OBSERVATION, {"a": 1})
    finally:
        connection.close()


@pytest.mark.parametrize(("size", "fits"), [(33_554_431, True), (33_554_432, True), (33_554_433, False)])
def test_an_answer_has_at_most_32_mebibytes(size, fits):
    class Sized(bytes):
        def __len__(self) -> int:
            return size

    with pytest.raises(WireError, match="no msgpack" if fits else "at most 33554432"):
        OpenpiCodec().decode(Sized(b"\xc1"))


def websocket_frame(data: bytes, opcode: int, *, last: bool, compressed: bool = False) -> bytes:
    return bytes(((0x80 if last else 0) | (0x40 if compressed else 0) | opcode, 127)) + len(data).to_bytes(8) + data


def in_pieces(connection: ServerConnection) -> None:
    """Send 40 MB as fragments of one message."""
    piece = bytes(1 << 20)
    connection.socket.sendall(websocket_frame(piece, BINARY, last=False))
    for _ in range(40):
        connection.socket.sendall(websocket_frame(piece, CONTINUED, last=False))


def in_empty_pieces(connection: ServerConnection) -> None:
    """Send fragments without end that hold nothing."""
    connection.socket.sendall(websocket_frame(b"a", BINARY, last=False))
    for _ in range(2000):
        connection.socket.sendall(b"\x00\x00" * 100)


def compressed(connection: ServerConnection) -> None:
    """Send 100 MB as 100 kB, although nobody has agreed to that."""
    squeezer = zlib.compressobj(wbits=-15)
    piece = bytes(1 << 20)
    data = b"".join([*(squeezer.compress(piece) for _ in range(100)), squeezer.flush(zlib.Z_SYNC_FLUSH)])
    connection.socket.sendall(websocket_frame(data, BINARY, last=True, compressed=True))
    time.sleep(0.3)


def promising(connection: ServerConnection) -> None:
    """Say that a frame of four exabytes comes."""
    connection.socket.sendall(bytes((0x82, 127)) + (1 << 62).to_bytes(8) + b"abc")
    time.sleep(0.3)


def large(connection: ServerConnection) -> None:
    """Send one frame that is too large."""
    connection.socket.sendall(websocket_frame(bytes(8 << 20), BINARY, last=True))


@pytest.mark.parametrize("talk", [in_pieces, in_empty_pieces, compressed, promising, large])
def test_an_introduction_without_end_fills_no_memory(talk):
    with talking(talk) as port:
        tracemalloc.start()
        with pytest.raises((PolicyError, ServerUnreachableError)):
            asked(port)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The server's own pieces are counted too.
    assert peak < 24 << 20


def dripping(connection: ServerConnection) -> None:
    """Answer a byte at a time."""
    for byte in websocket_frame(OpenpiCodec.pack({"policy": "pi"}) + bytes(100), BINARY, last=True):
        connection.socket.sendall(bytes((byte,)))
        time.sleep(0.05)


def pinging(connection: ServerConnection) -> None:
    """Ask whether the client lives, again and again, and hear nothing."""
    for _ in range(3000):
        connection.socket.sendall(b"\x89\x7d" + bytes(125))


def leaving(connection: ServerConnection) -> None:
    """Leave in the middle of a frame."""
    connection.socket.sendall(websocket_frame(bytes(100), BINARY, last=True)[:30])
    connection.socket.close()


def garbling(connection: ServerConnection) -> None:
    """Send what are no frames."""
    connection.socket.sendall(b"\xff" * 1000)


def silent(connection: ServerConnection) -> None:
    """Say nothing."""
    time.sleep(1.5)


@pytest.mark.parametrize("talk", [dripping, pinging, leaving, garbling, silent])
def test_a_server_that_does_not_come_to_the_point_is_an_error_in_time(talk):
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
