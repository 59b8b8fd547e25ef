"""The messages of policy servers, and their limits; the tests of the model package have the bytes of GR00T's."""

import io
import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image

from arena_wire import gr00t as gr00t_wire
from arena_wire import zmtp
from arena_wire.messages import WireError
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION
from isaaclab_arena.remote.vla_eval import Message, VlaEvalCodec

MEGABYTE = 1 << 20
WIRES: dict[str, Callable[..., Any]] = {"gr00t": gr00t_wire.unpack, "openpi": OpenpiCodec.unpack}
each_wire = pytest.mark.parametrize("unpack", WIRES.values(), ids=WIRES)

# openpi packs bytes as keys, the shape as a list, and what np.ndarray.tobytes gives.
OPENPI_ARRAY = (
    b"\x84"
    b"\xc4\x0b__ndarray__\xc3"
    b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\x40"
    b"\xc4\x05dtype\xa3<f4"
    b"\xc4\x05shape\x92\x01\x02"
)


def packed(message: object) -> bytes:
    return bytes(msgpack.packb(message) or b"")


def test_openpis_arrays_and_numbers_have_the_bytes_that_openpi_reads():
    assert OpenpiCodec.pack(np.array([[1, 2]], np.float32)) == OPENPI_ARRAY
    read = OpenpiCodec.unpack(OPENPI_ARRAY)
    assert (read.dtype, read.tolist(), read.flags.writeable) == (np.float32, [[1, 2]], True)
    number = b"\x83\xc4\x0d__npgeneric__\xc3\xc4\x04data\x05\xc4\x05dtype\xa3<i2"
    assert OpenpiCodec.pack(np.int16(5)) == number
    assert OpenpiCodec.unpack(number).dtype == np.int16


def test_openpis_arrays_come_back_as_they_were_and_no_others_are_written():
    for array in (np.zeros((2, 4, 4, 3), np.uint8), np.arange(6.0).reshape(2, 3).T, np.array([True]), np.zeros((0, 7))):
        read = OpenpiCodec.unpack(OpenpiCodec.pack({"a": array}))["a"]
        assert (read.dtype, read.tolist()) == (array.dtype, array.tolist())
    for array in (np.array([{}]), np.array([1j]), np.zeros(1, "f4,i4")):
        with pytest.raises(WireError, match="may not travel"):
            OpenpiCodec.pack(array)


ZEROS = {"data": bytes(8), "dtype": "<f4", "shape": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("ndarray", {**ZEROS, "dtype": "|O"}, "object"),
        ("ndarray", {**ZEROS, "dtype": "<U2"}, "as many characters"),
        ("ndarray", {**ZEROS, "dtype": 4}, "no array of type"),
        ("ndarray", {**ZEROS, "shape": [1, 2**40]}, "8 bytes"),
        ("ndarray", {**ZEROS, "shape": [-1, -2]}, "8 bytes"),
        ("ndarray", {**ZEROS, "shape": ["a"]}, "whole numbers"),
        ("ndarray", {**ZEROS, "data": "text"}, "as bytes"),
        ("npgeneric", {"data": "x", "dtype": "<f4"}, "no number"),
        ("npgeneric", {"data": 300, "dtype": "|u1"}, "no number"),
    ],
)
def test_an_array_of_openpis_that_lies_about_itself_is_refused(kind, fields, says):
    data = {f"__{kind}__".encode(): True, **{key.encode(): value for key, value in fields.items()}}
    with pytest.raises(WireError, match=says):
        OpenpiCodec.unpack(packed(data))


def text_array(text: str, shape: list[int]) -> dict[bytes, Any]:
    """Bytes that openpi's client makes of an array of text."""
    data, dtype = np.array(text).tobytes(), np.array(text).dtype.str
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


ARROW = "move \N{RIGHTWARDS ARROW}"


@pytest.mark.parametrize(
    ("prompt", "is_text"),
    [
        (text_array(ARROW, []), True),
        ({b"__npgeneric__": True, b"data": ARROW, b"dtype": "<U6"}, True),
        (text_array("move", [2]), False),
        (text_array("move", []) | {b"data": b"x"}, False),
        (text_array("move", []) | {b"dtype": "<U100000"}, False),
    ],
)
def test_words_that_went_through_numpy_are_words(prompt, is_text):
    if is_text:
        assert OpenpiCodec.unpack(packed({"prompt": prompt})) == {"prompt": ARROW}
    else:
        with pytest.raises(WireError, match="array of text"):
            OpenpiCodec.unpack(packed({"prompt": prompt}))


# Messages of vla-eval, whose pictures are raw or encoded.


def travelled(payload: dict[str, Any], picture_format: Any = "raw") -> dict[str, Any]:
    message = Message(kind=OBSERVATION, payload=payload, number=1)
    return VlaEvalCodec.unpack(VlaEvalCodec.pack(message, picture_format)).payload


def picture(channels: int = 3) -> np.ndarray:
    ramp = np.arange(24 * 32, dtype=np.float64).reshape(24, 32, 1) / 4
    return np.broadcast_to(ramp, (24, 32, channels)).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("picture_format", ["raw", "png"])
def test_nothing_is_lost_raw_and_as_png(picture_format, channels):
    shown = {"images": {"front": picture(channels)}, "state": np.arange(3.0), "mask": np.zeros((2, 2, 2), np.uint8)}
    arrived = travelled(shown, picture_format)
    front = arrived["images"]["front"]
    assert np.array_equal(front.decoded() if picture_format == "png" else front, shown["images"]["front"])
    assert np.array_equal(arrived["state"], shown["state"])
    assert arrived["mask"].shape == (2, 2, 2)


def test_jpeg_loses_little_and_has_no_fourth_channel():
    arrived = travelled({"image": picture()}, "jpeg")["image"].decoded()
    assert arrived.shape == (24, 32, 3)
    assert np.abs(arrived.astype(int) - picture()).mean() < 4
    with pytest.raises(WireError, match="4 channels"):
        travelled({"image": picture(4)}, "jpeg")


def test_a_number_of_numpy_travels_as_a_number_and_a_complex_one_not_at_all():
    sent = travelled({"share": np.float32(0.5), "count": np.int64(3), "done": np.bool_(1)})
    assert repr(sent) == repr({"share": 0.5, "count": 3, "done": True})
    with pytest.raises(WireError, match="complex64"):
        travelled({"wave": np.complex64(1)})


def test_a_png_is_what_any_reader_reads_and_a_message_full_of_them_takes_no_memory_for_their_pixels():
    def as_png(shown: np.ndarray) -> dict[str, Any]:
        message = Message(kind=OBSERVATION, payload={"front": shown}, number=1)
        return msgpack.unpackb(VlaEvalCodec.pack(message, "png"))["payload"]["front"]

    value = as_png(picture())
    assert np.array_equal(np.array(Image.open(io.BytesIO(value["data"]))), picture())
    assert value["shape"] == [24, 32, 3]
    large = as_png(np.zeros((2048, 2048, 3), np.uint8))
    data = VlaEvalCodec.pack(Message(kind=OBSERVATION, payload={str(number): large for number in range(40)}, number=1))
    assert peak_of(lambda: VlaEvalCodec.unpack(data)) < 2 * len(data) + 1_000_000


# Limits in absolute numbers: what travels today must travel tomorrow, and what is refused stays refused.


def peak_of(work: Callable[[], object]) -> int:
    """Most memory that some work takes [bytes]."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@each_wire
@pytest.mark.parametrize(("size", "says"), [(268_435_456, "no msgpack"), (268_435_457, "at most 268435456")])
def test_a_message_has_at_most_256_mebibytes(unpack, size, says):
    class Sized(bytes):
        """Bytes that lie."""

        def __len__(self) -> int:
            return size

    with pytest.raises(WireError, match=says):
        unpack(Sized(b"\xc1"))


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


MANY_MAPS = b"\xdc\x40\x00" + (b"\xdc\x00\xff" + b"\x80" * 255) * 16384
NEWER = {b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [1], b"data": bytes(8)}
LARGE: Any = bytes(8 * MEGABYTE)


@pytest.mark.parametrize(
    ("unpack", "data", "max_megabytes"),
    [
        *((unpack, MANY_MAPS, 1) for unpack in WIRES.values()),
        *((gr00t_wire.unpack, packed({**NEWER, b"kind": kind, b"shape": [2**40]}), 1) for kind in (b"", b"O")),
        # What is said of a wrong map is not made from all that it holds: written out, bytes take four times the memory.
        *((gr00t_wire.unpack, packed({**NEWER, field: large}), 12) for field in NEWER for large in (LARGE, [LARGE])),
        (OpenpiCodec.unpack, packed({b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [LARGE]}), 12),
        (OpenpiCodec.unpack, packed({b"__ndarray__": True, b"shape": {LARGE: 1}}), 12),
        (gr00t_wire.unpack, packed({"__ModalityConfig_class__": True, "as_json": {LARGE: 1}}), 12),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, bytes) else None,
)
def test_a_message_that_asks_for_memory_is_refused_in_few_words_without_it(unpack, data, max_megabytes):
    def refused() -> None:
        with pytest.raises(WireError) as caught:
            unpack(data)
        assert len(str(caught.value)) < 300

    assert peak_of(refused) < max_megabytes * MEGABYTE


def last_message(frames: Sequence[bytes], *, max_bytes: int) -> Any:
    reader = zmtp.MessageReader(max_bytes)
    data = zmtp.GREETING + zmtp.ready("REQ") + b"".join(zmtp.message_pieces(frames))
    message = None
    while data:
        part, data = data[: reader.num_wanted], data[reader.num_wanted :]
        event = reader.feed(part)
        assert reader.num_held <= max_bytes + len(part)
        message = event if isinstance(event, zmtp.Message) else message
    return message


@pytest.mark.parametrize(("num_frames", "fits"), [(16, True), (17, False)])
def test_a_message_of_zeromq_has_at_most_16_frames(num_frames, fits):
    frames = [b"\0\0\0\0\0"] * (num_frames - 2) + [b"", b"body"]
    message = last_message(frames, max_bytes=1000)
    assert (message.is_whole, message.num_frames) == (fits, num_frames)
    assert [bytes(part) for part in message.frames] == (frames if fits else frames[:-1])


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
@pytest.mark.parametrize("num_frames", [1, 2, 9])
def test_all_frames_of_a_message_together_have_the_limit_of_a_message(size, fits, num_frames):
    sizes = [size // num_frames] * (num_frames - 1)
    frames = [b"x" * each for each in (*sizes, size - sum(sizes))]
    message = last_message(frames, max_bytes=100)
    assert (message.is_whole, message.num_bytes) == (fits, size)
    assert list(message.frames) == (frames if fits else [])


# Chance.

STEERING = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202eevil"
SAVED = io.BytesIO()
np.save(SAVED, np.zeros((2, 3), np.float32))
NPY = SAVED.getvalue()
KEYS = ["endpoint", "data", "observation", "options", "api_token", "state", "a", STEERING]
TYPES = ["<f4", "|O", "f4,i4", "<U9", "(9,)f4", "M8[s]", "V8", "<c8", "", 3, None, "a" * 99]
SHAPES = [[2], [1, 2], [-2], [2**40, 0], [0] * 70, [2**62, 2**62, 0], [1.5], [True, 2], {}, None]
PLAIN = [None, True, 0, -1, 2**63, 2**64 - 1, 1e400, float("nan"), "", STEERING, b""]


def some_message(random_: random.Random) -> bytes:
    """Return a message of GR00T's protocol, of another, or of none."""
    pick = random_.choice

    def value(depth: int) -> Any:
        newer = {b"kind": pick([b"", b"O", b"V", "O"]), b"shape": pick(SHAPES), b"data": bytes(8)}
        choices: list[Callable[[], Any]] = [
            lambda: pick(PLAIN),
            lambda: random_.randbytes(random_.randrange(40)),
            lambda: {"__ndarray_class__": True, "as_npy": damaged(NPY)},
            lambda: {"__ModalityConfig_class__": True, "as_json": value(depth + 1)},
            lambda: {"__ModalityConfig__": True, "as_json": value(depth + 1)},
            lambda: {b"nd": pick([True, False, 1]), b"type": pick(TYPES), **without_some(newer)},
            lambda: {b"complex": True, b"data": "(1+2j)"},
            lambda: {b"__ndarray__": True, b"data": bytes(8), b"dtype": pick(TYPES), b"shape": pick(SHAPES)},
            lambda: {b"__npgeneric__": True, b"data": value(9), b"dtype": pick(TYPES)},
        ]
        if depth < 5:
            choices.append(lambda: [value(depth + 1) for _ in range(random_.randrange(5))])
            choices.append(lambda: {pick(KEYS): value(depth + 1) for _ in range(random_.randrange(5))})
        return pick(choices)()

    def without_some(fields: dict[bytes, Any]) -> dict[bytes, Any]:
        return {key: entry for key, entry in fields.items() if random_.random() < 0.9}

    def damaged(data: bytes) -> bytes:
        damage = bytearray(data)
        for _ in range(random_.randrange(4)):
            damage[random_.randrange(len(damage))] = pick(b"\x00\xff(-[{'9,\\")
        return bytes(damage[: pick([len(damage), random_.randrange(len(damage))])])

    try:
        data = packed(value(0))
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
