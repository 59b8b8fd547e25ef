"""ZeroMQ's protocol, byte by byte, as the library's own sockets speak it."""

import pytest
import zmq

from arena_wire import zmtp
from arena_wire.zmtp import RequestSocket

HELLO = zmtp.GREETING + zmtp.ready("REQ")


def read(data: bytes, at_once: int = 10**9, max_bytes: int = 1000) -> list[zmtp.Event]:
    """Return everything that some bytes say, however they are cut."""
    reader, events = zmtp.MessageReader(max_bytes), []
    while data:
        size = min(reader.num_wanted, at_once)
        event = reader.feed(data[:size])
        data = data[size:]
        events += [event] if event is not None else []
    return events


def messages(events: list[zmtp.Event]) -> list[zmtp.Message]:
    return [event for event in events if isinstance(event, zmtp.Message)]


def test_the_introduction_has_the_bytes_of_the_protocol():
    assert len(zmtp.GREETING) == 64
    assert zmtp.GREETING[:12] == b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x00"
    assert zmtp.GREETING[12:32] == b"NULL" + bytes(16)
    assert zmtp.ready("REQ") == b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("at_once", [1000, 10**9])
def test_a_frame_of_any_size_comes_back(size, at_once):
    frames = [b"", b"x" * size]
    data = b"".join(zmtp.message_pieces(frames))
    assert data[:2] == b"\x01\x00"
    assert data[2] == (2 if size > 255 else 0)
    (message,) = messages(read(HELLO + data, at_once, max_bytes=size))
    assert list(message.frames) == frames
    assert message.is_whole


def test_bytes_may_come_one_by_one_and_commands_between_frames():
    ping = b"\x04\x0a\x04PING\x00\x05abc"
    data = HELLO + b"\x01\x00" + ping + b"\x00\x02hi"
    events = read(data, at_once=1)
    assert [type(event).__name__ for event in events] == ["Command", "MessageBegins", "Command", "Message"]
    asked = zmtp.Command(name=b"PING", data=b"\x00\x05abc")
    assert events[2] == asked
    assert zmtp.pong(asked) == b"\x04\x08\x04PONGabc"
    assert list(messages(events)[0].frames) == [b"", b"hi"]


def test_what_a_proxy_puts_in_front_leads_back_to_the_client():
    assert zmtp.split_envelope([b"abc", b"", b"body"]) == ([b"abc", b""], [b"body"])
    assert zmtp.split_envelope([b"", b"body"]) == ([b""], [b"body"])
    assert zmtp.split_envelope([b"body"]) == ([], [b"body"])


def test_of_a_message_that_is_too_large_the_way_back_is_kept_and_the_next_one_is_read():
    too_large = b"".join(zmtp.message_pieces([b"abc", b"", b"x" * 2000]))
    events = messages(read(HELLO + too_large + b"".join(zmtp.message_pieces([b"", b"y"]))))
    assert [event.is_whole for event in events] == [False, True]
    assert [bytes(frame) for frame in events[0].frames] == [b"abc", b""]
    assert events[0].num_bytes == 2003


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\n" * 4,
        zmtp.GREETING[:10] + b"\x01\x00" + zmtp.GREETING[12:],
        zmtp.GREETING.replace(b"NULL\0", b"CURVE"),
        HELLO + b"\x04\x00",
        HELLO + b"\x04\x03\x09AB",
        HELLO + b"\x06" + (4097).to_bytes(8),
        HELLO + b"\x04\x07\x05ERROR\x00",
    ],
)
def test_what_is_another_protocol_is_refused(data):
    with pytest.raises(zmtp.ProtocolError):
        read(data)


def test_a_socket_of_the_library_that_asks_for_signs_of_life_gets_them():
    """One that gets none within its time-out ends the connection."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.setsockopt(zmq.HEARTBEAT_IVL, 50)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 400)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        asking = RequestSocket("127.0.0.1", port, timeout_s=60, max_bytes=100)
        asking.send(b"hi", 1.0)
        with pytest.raises(TimeoutError):
            asking.receive(1.0)
        assert socket.recv() == b"hi"
        socket.send(b"there")
        assert asking.receive(5.0) == b"there"
        asking.close()
