from collections.abc import Callable

import numpy as np
import pytest

from isaaclab_arena.workers import program


def read_from(data: bytes) -> Callable[[int], bytes]:
    """Reader that returns as many bytes as `program.decode` asks for."""
    position = 0

    def read_exactly(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    return read_exactly


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", ">f8", "?"])
def test_a_frame_brings_arrays_as_they_were(dtype):
    sent = (np.arange(12).reshape(3, 4) % 7).astype(dtype)
    message, arrays = program.decode(read_from(program.encode({"a": [1, None]}, {"x": sent, "empty": sent[:0]})))
    assert message == {"a": [1, None]}
    assert np.array_equal(arrays["x"], sent)
    assert arrays["x"].dtype == np.dtype(dtype).newbyteorder("<")
    assert arrays["empty"].shape == (0, 4)


def test_a_frame_that_says_nothing_is_always_the_same():
    assert program.encode({}, {}) == program.EMPTY
    assert program.decode(read_from(program.EMPTY)) == ({}, {})


def test_only_numbers_travel():
    with pytest.raises(program.FrameError, match="only numbers travel"):
        program.encode({}, {"x": np.array([None])})


@pytest.mark.parametrize(
    ("layout", "message"),
    [(["|O", [1]], "claims to be"), (["<f4", [-1]], "claims to be"), (["<f8", [1 << 20, 1 << 20]], "are allowed")],
)
def test_a_frame_that_lies_is_refused(layout, message):
    honest = program.encode({}, {"x": np.zeros(1, np.float32)})
    header = honest[8:].replace(b'["x", "<f4", [1]]', f'["x", "{layout[0]}", {layout[1]}]'.encode())
    size = header.index(b"}", header.index(b"arrays")) + 1
    lying = honest[:4] + size.to_bytes(4, "little") + header
    with pytest.raises(program.FrameError, match=message):
        program.decode(read_from(lying))


def test_something_else_on_the_pipe_is_refused():
    with pytest.raises(program.FrameError, match="where a frame should begin"):
        program.decode(read_from(b"Traceback (most recent call last)"))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"message": {}, "arrays": [["x", "<U4", [1]]]}',
        b'{"message": {}, "arrays": [["x", "V8", [1]]]}',
        b'{"message": {}, "arrays": [["x", [["a", "O"]], [1]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [true]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [1e3]]]}',
        b'{"message": {}, "arrays": [["x", "<f4", [0, 1000000000000000000000000]]]}',
        b'{"message": {}, "arrays": 3}',
        b"not json",
        b"\x80\x04\x95",
    ],
)
def test_a_frame_of_nonsense_is_refused_and_nothing_is_unpickled(header):
    frame = b"ARN1" + len(header).to_bytes(4, "little") + header + b"\0" * 64
    with pytest.raises((program.FrameError, ValueError, KeyError, TypeError)):
        program.decode(read_from(frame))


def test_a_frame_larger_than_any_header_is_not_waited_for():
    with pytest.raises(program.FrameError):
        program.decode(read_from(b"ARN1" + np.uint32(program.MAX_HEADER_BYTES + 1).tobytes()))
