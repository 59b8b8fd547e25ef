"""Messages that no honest server sends."""

import io
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from gr00t.policy.policy_server import Listener, PolicyServer
from gr00t.policy.server_client import PolicyClient

from arena_wire import gr00t as gr00t_wire
from arena_wire import zmtp
from arena_wire.messages import WireError, WireLimits
from isaaclab_arena import ArenaError
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec
from tests.gr00t.remote.test_connection import connected
from tests.gr00t.servers import NetworkPolicy, ServerProcess, serving
from tests.outsiders.peers import DELIMITER, dialled, frame, peak_bytes, pretending, read_answer

MEGABYTE = 1 << 20
WIRES: dict[str, Callable[..., Any]] = {"gr00t": gr00t_wire.unpack, "openpi": OpenpiCodec.unpack}
each_wire = pytest.mark.parametrize("unpack", WIRES.values(), ids=WIRES)


def packed(message: object) -> bytes:
    return bytes(msgpack.packb(message) or b"")


# Limits in absolute numbers: what travels today must travel tomorrow, and what is refused stays refused.


def refused(unpack: Callable[[bytes], Any], data: bytes, says: str, *, max_peak: int = 12 * MEGABYTE) -> None:
    """Make sure that a message is refused in few words, without the memory that it asks for."""
    tracemalloc.start()
    with pytest.raises(WireError, match=says) as caught:
        unpack(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < max_peak
    assert len(str(caught.value)) < 300


@each_wire
@pytest.mark.parametrize(("size", "says"), [(268_435_456, "no msgpack"), (268_435_457, "at most 268435456")])
def test_a_message_has_at_most_256_mebibytes(unpack, size, says):
    class Sized(bytes):
        """Bytes that say they are many."""

        def __len__(self) -> int:
            return size

    refused(unpack, Sized(b"\xc1"), says)


# Messages of a size, the largest size that travels, and what is said of the next one.
LIMITS: dict[str, tuple[Callable[[int], bytes], int, str]] = {
    "values in one list": (lambda size: packed([0] * (size - 1)), 65_536, "65536 values"),
    # Twelve values in all stand beside the long list here, none of which a container's own limit would count.
    "values here and there": (
        lambda size: packed({"a": [{}] * 5, "b": [[]] * 3, "c": [0] * (size - 15)}),
        65_536,
        "65536 values",
    ),
    "deep lists": (lambda size: b"\x91" * size + b"\xc0", 16, "deeper than 16"),
    "deep maps": (lambda size: b"\x81\xa1a" * size + b"\xc0", 16, "deeper than 16"),
    "a text": (lambda size: packed("a" * size), 1_048_576, "1048576 bytes"),
    "texts": (lambda size: packed({"a": "b" * (size - 7), "c": ["defgh"]}), 1_048_576, "1048576 bytes"),
}


@each_wire
@pytest.mark.parametrize(("message", "limit", "says"), LIMITS.values(), ids=LIMITS)
def test_a_message_has_limits_of_values_depth_and_texts(unpack, message, limit, says):
    unpack(message(limit))
    with pytest.raises(WireError, match=says):
        unpack(message(limit + 1))


@each_wire
def test_four_megabytes_of_empty_maps_take_no_memory(unpack):
    data = b"\xdc\x40\x00" + (b"\xdc\x00\xff" + b"\x80" * 255) * 16384
    assert len(data) > 4_000_000
    refused(unpack, data, "65536 values", max_peak=MEGABYTE)


NEWER = {b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [1], b"data": bytes(8)}


@pytest.mark.parametrize("kind", [b"", b"O"])
def test_a_map_that_promises_a_large_array_takes_no_memory(kind):
    data = packed({**NEWER, b"kind": kind, b"shape": [2**40]})
    refused(gr00t_wire.unpack, data, r"came with 8 bytes|may not travel", max_peak=MEGABYTE)


LARGE: Any = bytes(8 * MEGABYTE)


@pytest.mark.parametrize(
    ("unpack", "message"),
    [
        *((gr00t_wire.unpack, {**NEWER, field: large}) for field in NEWER for large in (LARGE, [LARGE])),
        (OpenpiCodec.unpack, {b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [LARGE]}),
        (OpenpiCodec.unpack, {b"__ndarray__": True, b"shape": {LARGE: 1}}),
        (gr00t_wire.unpack, {"__ModalityConfig_class__": True, "as_json": {LARGE: 1}}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_what_is_said_of_a_wrong_map_is_not_made_from_all_that_it_holds(unpack, message):
    """Written out, bytes take four times the memory."""
    refused(unpack, packed(message), ".")


@pytest.mark.parametrize(("num_frames", "fits"), [(16, True), (17, False)])
def test_a_message_has_at_most_16_frames(num_frames, fits):
    frames = [b"\0\0\0\0\0"] * (num_frames - 2) + [b"", b"body"]
    message = last_message(zmtp.message_pieces(frames), max_bytes=1000)
    assert (message.is_whole, message.num_frames) == (fits, num_frames)
    assert [bytes(part) for part in message.frames] == (frames if fits else frames[:-1])


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
@pytest.mark.parametrize("num_frames", [1, 2, 9])
def test_all_frames_of_a_message_together_have_the_limit_of_a_message(size, fits, num_frames):
    sizes = [size // num_frames] * (num_frames - 1)
    frames = [b"x" * each for each in (*sizes, size - sum(sizes))]
    message = last_message(zmtp.message_pieces(frames), max_bytes=100)
    assert (message.is_whole, message.num_bytes) == (fits, size)
    assert list(message.frames) == (frames if fits else [])


def last_message(pieces: Sequence[bytes | bytearray], *, max_bytes: int) -> Any:
    reader = zmtp.MessageReader(max_bytes)
    data = zmtp.GREETING + zmtp.ready("REQ") + b"".join(pieces)
    message = None
    while data:
        part, data = data[: reader.num_wanted], data[reader.num_wanted :]
        event = reader.feed(part)
        assert reader.num_held <= max_bytes + len(part)
        message = event if isinstance(event, zmtp.Message) else message
    return message


# What a peer may cost.


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


def test_the_next_question_of_a_client_is_not_read_before_the_last_one_is_answered():
    sizes = []

    class Counting:
        def get_action(self, observation: dict[str, Any], options: object = None) -> tuple[dict, dict]:
            del options
            sizes.append(len(observation["state"]["arm"]))
            return {"arm": np.zeros((sizes[-1], 1, 1), np.float32)}, {}

        def reset(self, options: object = None) -> dict:
            del options
            return {}

    question = {"endpoint": "get_action", "data": {"observation": {"state": {"arm": np.zeros((1, 1, 1), np.float32)}}}}
    with serving(Counting()) as server, dialled(server.port) as stranger:
        stranger.sendall(3 * (DELIMITER + frame(gr00t_wire.pack(question))))
        for _ in range(3):
            assert b"arm" in read_answer(stranger)
    assert sizes == [1, 1, 1]


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
        port = listener.port
        idle, patient, half = (stack.enter_context(dialled(port)) for _ in range(3))
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


@pytest.fixture(params=["model", "policy"])
def asked(request) -> Callable[[int, int], Any]:
    """How either client asks a server at a port, with a limit for the answer."""

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
        with pytest.raises((PolicyError, RuntimeError), match="1048576"):
            asked(port, MEGABYTE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * MEGABYTE


@pytest.mark.parametrize(
    "answers",
    [
        [b"\x02" + (100).to_bytes(8) + b"x"],
        [DELIMITER + b"\x02" + (50).to_bytes(8), *[b"x"] * 20],
        [b"\x04\x05\x04PING", *[b"\x04\x05\x04PING"] * 20],
        [b"\x04\x00"],
        [b"\xff" * 100],
        [b"\x06" + (1 << 40).to_bytes(8)],
        [b"\x00\x00"],
        [b"\x01\x00" * 40 + b"\x00\x00"],
        [],
    ],
    ids=["half", "drip", "pings", "unnamed", "flags", "command", "undelimited", "empty frames", "gone"],
)
def test_an_answer_that_never_is_one_is_an_error_in_time(asked, answers):
    def talk(other):
        other.recv(64)
        for answer in answers:
            other.sendall(answer)
            time.sleep(0.03)

    with pretending(talk) as port, pytest.raises((ArenaError, RuntimeError)):
        asked(port, 1000)


@pytest.mark.parametrize("said", [b"", b"\xff", bytes(64), b"SSH-2.0-x\r\n" * 9, b"\xff" + bytes(8) + b"\x7f\x01" * 30])
def test_what_is_no_such_server_is_an_error_in_time(asked, said):
    no_answer = pytest.raises((ArenaError, RuntimeError))
    with pretending(lambda other: other.sendall(said), introduce=False) as port, no_answer:
        asked(port, 1000)


STEERING = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202eevil"


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


@pytest.mark.parametrize("start", ["", "Unauthorized "])
def test_what_a_server_says_steers_no_terminal(asked, start):
    def talk(other):
        other.recv(64)
        other.sendall(DELIMITER + frame(packed({"error": start + STEERING + "x" * 100_000})))

    with pretending(talk) as port, pytest.raises((ArenaError, RuntimeError)) as caught:
        asked(port, MEGABYTE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_server_remembers_who_asked_in_the_last_ten_seconds_and_no_more_than_can_be_connected(monkeypatch):
    server, now = PolicyServer(NetworkPolicy(), port=0), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for client in range(1500):
        server._remember(client)
    assert len(server._last_asked) == 1000
    now[0] = 105.0
    server._remember(2000)
    now[0] = 110.5
    server._forget_old()
    assert list(server._last_asked) == [2000]
    monkeypatch.undo()
    server._listener.close(0)


# Chance.

SAVED = io.BytesIO()
np.save(SAVED, np.zeros((2, 3), np.float32))
NPY = SAVED.getvalue()


def some_message(random_: random.Random) -> bytes:
    """Return a message of this protocol, of another, or of none."""

    def value(depth: int) -> Any:
        choices: list[Callable[[], Any]] = [
            lambda: random_.choice([None, True, 0, -1, 2**63, 2**64 - 1, 1e400, float("nan"), "", STEERING, b""]),
            lambda: random_.randbytes(random_.randrange(40)),
            lambda: {"__ndarray_class__": True, "as_npy": damaged(NPY)},
            lambda: {"__ModalityConfig_class__": True, "as_json": value(depth + 1)},
            lambda: {"__ModalityConfig__": True, "as_json": value(depth + 1)},
            lambda: {b"nd": random_.choice([True, False, 1]), b"type": some_type(), **some_rest()},
            lambda: {b"complex": True, b"data": "(1+2j)"},
            lambda: {b"__ndarray__": True, b"data": bytes(8), b"dtype": some_type(), b"shape": some_shape()},
            lambda: {b"__npgeneric__": True, b"data": value(9), b"dtype": some_type()},
        ]
        if depth < 5:
            choices.append(lambda: [value(depth + 1) for _ in range(random_.randrange(5))])
            choices.append(lambda: {some_key(): value(depth + 1) for _ in range(random_.randrange(5))})
        return random_.choice(choices)()

    def some_rest() -> dict[bytes, Any]:
        rest = {b"kind": random_.choice([b"", b"O", b"V", "O"]), b"shape": some_shape(), b"data": bytes(8)}
        return {key: entry for key, entry in rest.items() if random_.random() < 0.9}

    def some_key() -> str:
        return random_.choice(["endpoint", "data", "observation", "options", "api_token", "state", "a", STEERING])

    def some_type() -> Any:
        return random_.choice(["<f4", "|O", "f4,i4", "<U9", "(9,)f4", "M8[s]", "V8", "<c8", "", 3, None, "a" * 99])

    def some_shape() -> Any:
        return random_.choice([[2], [1, 2], [-2], [2**40, 0], [0] * 70, [2**62, 2**62, 0], [1.5], [True, 2], {}, None])

    def damaged(data: bytes) -> bytes:
        damage = bytearray(data)
        for _ in range(random_.randrange(4)):
            damage[random_.randrange(len(damage))] = random_.choice(b"\x00\xff(-[{'9,\\")
        return bytes(damage[: random_.choice([len(damage), random_.randrange(len(damage))])])

    try:
        data = bytes(msgpack.packb(value(0)) or b"")
    except (OverflowError, ValueError):
        data = b"\xc1"
    return damaged(data) if data and random_.random() < 0.5 else data


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 1500), *(pytest.param(seed, 10_000, marks=pytest.mark.slow) for seed in range(100, 140))]
)
def test_whatever_comes_is_a_message_or_an_error_of_the_wire(seed, count):
    random_ = random.Random(seed)
    for number in range(count):
        data = some_message(random_)
        for unpack in WIRES.values():
            words = ""
            try:
                unpack(data)
            except WireError as found:
                words = str(found)
            except Exception as found:
                raise AssertionError(f"seed {seed}, message {number}: {data!r}") from found
            assert len(words) < 2000, f"seed {seed}, message {number}"


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
        client = PolicyClient("127.0.0.1", server.port)
        assert client.ping(), f"seed {seed}"
        client.close()
    assert threading.active_count() < 50
