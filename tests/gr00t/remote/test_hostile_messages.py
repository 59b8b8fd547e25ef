"""Peers of GR00T's servers and clients that no honest one is."""

import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgpack
import pytest
from gr00t.policy.policy_server import Listener
from gr00t.policy.server_client import PolicyClient

from arena_wire.messages import WireLimits
from isaaclab_arena import ArenaError
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec
from tests.gr00t.remote.test_connection import connected
from tests.gr00t.remote.test_wires import MEGABYTE, STEERING, packed, some_message
from tests.gr00t.servers import NetworkPolicy, ServerProcess, serving
from tests.outsiders.peers import DELIMITER, dialled, frame, peak_bytes, pretending, read_answer

# What a client may cost a server.


def test_what_strangers_send_takes_a_server_little_memory_and_others_are_heard():
    """One process for all, whose peak only rises; the least that it may take comes first."""

    def promises_more_than_the_machine_has(stranger: socket.socket) -> None:
        stranger.sendall(DELIMITER + b"\x02" + (1 << 62).to_bytes(8) + b"a few bytes")

    def sends_61_frames_of_two_megabytes(stranger: socket.socket) -> None:
        stranger.sendall(DELIMITER)
        piece = frame(bytes(2 * MEGABYTE), more=True)
        for _ in range(61):
            stranger.sendall(piece)
        stranger.sendall(frame(b""))
        assert b"at most 1048576 are allowed" in read_answer(stranger)

    def never_ends_its_message(stranger: socket.socket) -> None:
        stranger.sendall(DELIMITER + frame(bytes(MEGABYTE - 100))[:-1])

    with ServerProcess(api_token="secret", max_message_bytes=MEGABYTE) as server, ExitStack() as stack:

        def is_heard() -> bool:
            with dialled(server.port) as friend:
                friend.sendall(DELIMITER + frame(packed({"endpoint": "ping", "api_token": "secret"})))
                return b"running" in read_answer(friend)

        assert is_heard()
        before = peak_bytes(server.pid)
        for sends, number, max_megabytes in (
            (promises_more_than_the_machine_has, 1, 4),
            (sends_61_frames_of_two_megabytes, 1, 8),
            (never_ends_its_message, 40, 12),
        ):
            for _ in range(number):
                sends(stack.enter_context(dialled(server.port)))
            assert is_heard()
            assert peak_bytes(server.pid) - before < max_megabytes * MEGABYTE, sends.__name__


def test_a_client_that_sends_endless_small_pieces_keeps_no_other_client_waiting():
    with serving(NetworkPolicy()) as server, dialled(server.port) as stranger, dialled(server.port) as friend:
        # Commands may come between the frames of a message, so this one never ends.
        stranger.sendall(frame(b"x", more=True))

        def flood() -> None:
            with suppress(OSError):
                while True:
                    stranger.sendall(50_000 * b"\x04\x01\x00")

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            before = time.monotonic()
            for _ in range(20):
                friend.sendall(DELIMITER + frame(packed({"endpoint": "ping"})))
                assert b"running" in read_answer(friend)
            assert time.monotonic() - before < 20
        finally:
            stranger.shutdown(socket.SHUT_RDWR)
            flooding.join()


def test_a_client_that_falls_silent_in_the_middle_is_dropped_and_one_that_waits_is_not():
    listener = Listener(("127.0.0.1", 0), max_message_bytes=MEGABYTE, max_clients=10, patience_s=1.0)
    listener.start()
    with ExitStack() as stack:
        stack.callback(listener.close, 0.0)
        idle, patient, half = (stack.enter_context(dialled(listener.port)) for _ in range(3))
        question = DELIMITER + frame(b"question")
        patient.sendall(question + question[:4])
        half.sendall(question[:-1])
        arrived = listener.receive(30)
        assert arrived is not None
        # The rest of the next question is not read before the answer, so its client is not the one that is waited for.
        assert half.recv(1000) == b""
        listener.answer(arrived.client, [*arrived.envelope, b"answer"])
        assert b"answer" in read_answer(patient)
        for client, rest in ((patient, question[4:]), (idle, question)):
            client.sendall(rest)
            arrived = listener.receive(30)
            assert arrived is not None
            listener.answer(arrived.client, [*arrived.envelope, b"answer"])
            assert b"answer" in read_answer(client)


def test_without_the_token_nothing_of_a_request_is_unpacked(monkeypatch):
    unpacked: list[int] = []
    real = msgpack.unpackb
    monkeypatch.setattr(msgpack, "unpackb", lambda data, **options: unpacked.append(len(data)) or real(data, **options))
    newer = {b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [100_000], b"data": bytes(100_000)}
    big = {"endpoint": "get_action", "data": {"observation": [newer, bytes(100_000), [{}] * 1000]}}
    with serving(NetworkPolicy(), api_token="secret") as server:
        for token in ({}, {"api_token": "wrong"}, {"api_token": ["secret"]}, {"api_token": None}):
            with dialled(server.port) as stranger:
                stranger.sendall(DELIMITER + frame(packed({**big, **token})))
                assert b"Unauthorized" in read_answer(stranger)
    assert sum(unpacked) < 100


def test_what_a_client_says_steers_no_terminal(caplog):
    requests = [
        {"endpoint": STEERING},
        {"endpoint": "reset", "data": {STEERING: 1}},
        {"data": {STEERING: {}}},
        {"data": {"observation": {"state": {STEERING: 1}}}},
        {"endpoint": "reset", "data": {"a": {"__ndarray_class__": True, "as_npy": STEERING.encode()}}},
        {"endpoint": "x" * 100_000},
    ]
    with caplog.at_level("DEBUG"), serving(NetworkPolicy()) as server, dialled(server.port) as stranger:
        for request in requests:
            stranger.sendall(DELIMITER + frame(packed(request)))
            answer = msgpack.unpackb(read_answer(stranger))
            assert answer["error"].isprintable()
            assert len(answer["error"]) < 1000
    lines = [line for record in caplog.records for line in record.getMessage().split("\n")]
    assert len(lines) >= len(requests)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("seed", "count"), [(7, 30), *(pytest.param(seed, 2000, marks=pytest.mark.slow) for seed in range(200, 210))]
)
def test_whatever_comes_is_answered_and_the_server_goes_on(seed, count):
    random_ = random.Random(seed)
    with serving(NetworkPolicy(), allow_kill=False) as server:
        for number in range(count):
            with dialled(server.port) as stranger:
                stranger.sendall(DELIMITER + frame(some_message(random_)))
                answer = msgpack.unpackb(read_answer(stranger))
                assert isinstance(answer, (dict, list)), f"seed {seed}, message {number}: {answer!r}"
        with closing(PolicyClient("127.0.0.1", server.port)) as client:
            assert client.ping(), f"seed {seed}"
    assert threading.active_count() < 50


# What a server may do to either client, that of the policy and that of the model package.

FAILURES = (ArenaError, RuntimeError)


@pytest.fixture(params=["model", "policy"])
def asked(request) -> Callable[[int, int], Any]:
    """How a client asks a server at a port, with a limit for the answer."""

    def by_model(port: int, max_bytes: int) -> Any:
        limits = WireLimits(max_message_bytes=max_bytes)
        with closing(PolicyClient("127.0.0.1", port, timeout_ms=250, limits=limits)) as client:
            return client.reset()

    def by_policy(port: int, max_bytes: int) -> Any:
        codec = Gr00tCodec(limits=WireLimits(max_message_bytes=max_bytes))
        with connected(port, codec, timeout_s=0.25, wait_for_server_s=0.1) as connection:
            return connection.ask("reset", {})

    return by_model if request.param == "model" else by_policy


def test_a_server_that_answers_with_frame_after_frame_fills_no_client(asked):
    piece = frame(bytes(2 * MEGABYTE), more=True)

    def endless(other):
        other.recv(64)
        other.sendall(DELIMITER)
        for _ in range(60):
            other.sendall(piece)

    with pretending(endless) as port:
        tracemalloc.start()
        with pytest.raises(FAILURES, match="1048576"):
            asked(port, MEGABYTE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * MEGABYTE


# Without an introduction, what is sent at once in its place; with one, the pieces of the answer.
POINTLESS: dict[str, tuple[bool, list[bytes]]] = {
    "drip": (True, [DELIMITER + b"\x02" + (50).to_bytes(8), *[b"x"] * 20]),
    "pings": (True, [b"\x04\x05\x04PING", *[b"\x04\x05\x04PING"] * 20]),
    "flags": (True, [b"\xff" * 100]),
    "command": (True, [b"\x06" + (1 << 40).to_bytes(8)]),
    "undelimited": (True, [b"\x00\x00"]),
    "empty frames": (True, [b"\x01\x00" * 40 + b"\x00\x00"]),
    "gone": (True, []),
    "silence": (False, [b""]),
    "ssh": (False, [b"SSH-2.0-x\r\n" * 9]),
    "an old version": (False, [b"\xff" + bytes(8) + b"\x7f\x01" * 30]),
}


@pytest.mark.parametrize(("introduce", "pieces"), POINTLESS.values(), ids=POINTLESS)
def test_a_server_that_never_comes_to_the_point_is_an_error_in_time(asked, introduce, pieces):
    def talk(other):
        if introduce:
            other.recv(64)
        for piece in pieces:
            other.sendall(piece)
            time.sleep(0.03)

    with pretending(talk, introduce=introduce) as port, pytest.raises(FAILURES):
        asked(port, 1000)


@pytest.mark.parametrize("start", ["", "Unauthorized "])
def test_what_a_server_says_steers_no_terminal(asked, start):
    def talk(other):
        other.recv(64)
        other.sendall(DELIMITER + frame(packed({"error": start + STEERING + "x" * 100_000})))

    with pretending(talk) as port, pytest.raises(FAILURES) as caught:
        asked(port, MEGABYTE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
