"""The messages of GR00T's servers."""

import io
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image

from arena_wire import gr00t as gr00t_wire
from arena_wire.gr00t import ArrayFormat
from arena_wire.messages import WireError, WireLimits
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION
from isaaclab_arena.remote.vla_eval import Message, VlaEvalCodec
from isaaclab_arena_gr00t.config import StatedModality

# The bytes that go to and come from servers of others, written out by hand.


# np.save of float32 [[1, 2]]: magic, version 1.0, a header of 118 bytes padded to 128 in all, then eight bytes.
NPY = (
    b"\x93NUMPY\x01\x00\x76\x00"
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }" + b" " * 58 + b"\n"
    b"\x00\x00\x80\x3f\x00\x00\x00\x40"
)
GR00T_ARRAY = b"\x82\xb1__ndarray_class__\xc3\xa6as_npy\xc4\x88" + NPY
# The same array from msgpack_numpy 0.4.8 and msgpack 1.2.4, as GR00T N1.7 sends it.
NEWER_GR00T_ARRAY = (
    b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\x92\x01\x02"
    b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\x40"
)
# openpi packs bytes as keys, the shape as a list, and what np.ndarray.tobytes gives.
OPENPI_ARRAY = (
    b"\x84"
    b"\xc4\x0b__ndarray__\xc3"
    b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\x40"
    b"\xc4\x05dtype\xa3<f4"
    b"\xc4\x05shape\x92\x01\x02"
)
ARRAY = np.array([[1, 2]], np.float32)


def packed(message: object) -> bytes:
    return bytes(msgpack.packb(message) or b"")


@pytest.mark.parametrize(
    ("form", "array"), [(ArrayFormat.NPY, GR00T_ARRAY), (ArrayFormat.NUMPY_MAP, NEWER_GR00T_ARRAY)]
)
def test_a_gr00t_request_has_the_bytes_that_nvidias_servers_of_a_release_read(form, array):
    request = {
        "endpoint": "get_action",
        "data": {"observation": {"state": {"arm": ARRAY}}, "options": {"noise_seeds": [7]}},
        "api_token": "key",
    }
    assert gr00t_wire.pack(request, form) == (
        b"\x83\xa8endpoint\xaaget_action\xa4data\x82\xabobservation\x81\xa5state\x81\xa3arm"
        + array
        + b"\xa7options\x81\xabnoise_seeds\x91\x07\xa9api_token\xa3key"
    )


def test_an_answer_tells_how_its_server_writes_arrays():
    newer, older = (b"\x92\x81\xa3arm" + array + b"\x80" for array in (NEWER_GR00T_ARRAY, GR00T_ARRAY))
    for data, arrays in ((newer, ArrayFormat.NUMPY_MAP), (older, ArrayFormat.NPY), (b"\x80", None)):
        message, found = gr00t_wire.received(data)
        assert found is arrays
        if arrays is not None:
            assert (message[0]["arm"].dtype, message[0]["arm"].tolist()) == (np.float32, [[1, 2]])
            assert message[0]["arm"].flags.writeable


@pytest.mark.parametrize(
    ("name", "form"), [("__ModalityConfig_class__", ArrayFormat.NPY), ("__ModalityConfig__", ArrayFormat.NUMPY_MAP)]
)
def test_a_servers_modality_is_known_by_its_name_without_what_only_training_needs(name, form):
    fields = {"delta_indices": [-15, 0], "modality_keys": ["arm"], "sin_cos_embedding_keys": None}
    data = packed({"video": {name: True, "as_json": {**fields, "action_configs": [{}]}}})
    message, found = gr00t_wire.received(data, modality=StatedModality)
    assert message == {"video": StatedModality(delta_indices=[-15, 0], modality_keys=["arm"])}
    assert found is form


def test_openpis_arrays_and_numbers_have_the_bytes_that_openpi_reads():
    assert OpenpiCodec.pack(ARRAY) == OPENPI_ARRAY
    read = OpenpiCodec.unpack(OPENPI_ARRAY)
    assert (read.dtype, read.tolist(), read.flags.writeable) == (np.float32, [[1, 2]], True)
    number = b"\x83\xc4\x0d__npgeneric__\xc3\xc4\x04data\x05\xc4\x05dtype\xa3<i2"
    assert OpenpiCodec.pack(np.int16(5)) == number
    assert OpenpiCodec.unpack(number).dtype == np.int16


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 4, 4, 3), np.uint8), np.arange(6.0).reshape(2, 3).T, np.array([True]), np.zeros((0, 7))],
    ids=["images", "transposed", "booleans", "empty"],
)
@pytest.mark.parametrize("wire", [gr00t_wire, OpenpiCodec], ids=["gr00t", "openpi"])
def test_an_array_comes_back_as_it_was(wire, array):
    read = wire.unpack(wire.pack({"a": array}))["a"]
    newer = gr00t_wire.unpack(gr00t_wire.pack(array, ArrayFormat.NUMPY_MAP))
    assert (newer.dtype, newer.tolist()) == (array.dtype, array.tolist())
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


@pytest.mark.parametrize("array", [np.array([{}]), np.array([1j]), np.zeros(1, "f4,i4")])
@pytest.mark.parametrize("wire", [gr00t_wire, OpenpiCodec], ids=["gr00t", "openpi"])
def test_an_array_of_something_else_is_not_written(wire, array):
    with pytest.raises(WireError, match="may not travel"):
        wire.pack(array)


def openpi_array(**changes) -> bytes:
    fields = {"data": b"\x00" * 8, "dtype": "<f4", "shape": [1, 2], **changes}
    return packed({b"__ndarray__": True, **{key.encode(): value for key, value in fields.items()}})


def npgeneric(data: Any, dtype: str) -> bytes:
    return packed({b"__npgeneric__": True, b"data": data, b"dtype": dtype})


def npy(data: Any) -> bytes:
    return packed({"__ndarray_class__": True, "as_npy": data})


def newer(**changes: Any) -> bytes:
    fields = {"nd": True, "type": "<f4", "kind": b"", "shape": [1, 2], "data": bytes(8), **changes}
    return packed({key.encode(): value for key, value in fields.items()})


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("wire", "data", "says"),
    [
        (OpenpiCodec, openpi_array(dtype="|O"), "object"),
        (OpenpiCodec, openpi_array(dtype="f4,i4"), "no array of type"),
        (OpenpiCodec, openpi_array(dtype="<U2"), "as many characters"),
        (OpenpiCodec, openpi_array(dtype="nonsense"), "no array of type"),
        (OpenpiCodec, openpi_array(dtype=4), "no array of type"),
        (OpenpiCodec, openpi_array(shape=[1, 2**40]), "8 bytes"),
        (OpenpiCodec, openpi_array(shape=[-1, -2]), "8 bytes"),
        (OpenpiCodec, openpi_array(shape=["a"]), "whole numbers"),
        (OpenpiCodec, openpi_array(shape=3), "shape"),
        (OpenpiCodec, openpi_array(data="text"), "as bytes"),
        (OpenpiCodec, npgeneric("x", "<f4"), "no number"),
        (OpenpiCodec, npgeneric(300, "|u1"), "no number"),
        (OpenpiCodec, npgeneric(1, "|O"), "no number"),
        (gr00t_wire, npy(pickled()), "object"),
        (gr00t_wire, npy(NPY[:-1]), "7 bytes"),
        (gr00t_wire, npy(NPY.replace(b"2), }" + b" " * 15, b"2" + b"0" * 15 + b"), }")), "8 bytes"),
        (gr00t_wire, npy(b"PK\x03\x04"), "damaged"),
        (gr00t_wire, npy(7), "as bytes"),
        (gr00t_wire, newer(kind=b"O", data=b"cos\nsystem\n(S'true'\ntR."), "kind b'O'"),
        (gr00t_wire, newer(type="|O"), "object"),
        (gr00t_wire, newer(type=[["f0", "<f4"], ["f1", "<i4"]], kind=b"V"), "kind b'V'"),
        (gr00t_wire, newer(type="<c8"), "complex64"),
        (gr00t_wire, newer(shape=[1, 2**40]), "8 bytes"),
        (gr00t_wire, newer(shape=[-1, -2]), "8 bytes"),
        (gr00t_wire, newer(nd=1), "true or false"),
        (gr00t_wire, newer(complex=True), "complex number"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(wire, data, says):
    with pytest.raises(WireError, match=says):
        wire.unpack(data)


@pytest.mark.parametrize("wire", [gr00t_wire, OpenpiCodec], ids=["gr00t", "openpi"])
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no msgpack"),
        (b"garbage", "no msgpack"),
        (b"\xdd\xff\xff\xff\xff", "no msgpack"),
        (b"\x91" * 20 + b"\xc0", "nested deeper than 16"),
        (b"\xd4\x05\x00", "extension type 5"),
        (b"\xd6\xff\x00\x00\x00\x00", "timestamp"),
        (b"\xc0" * 101, "101 bytes, at most 100"),
    ],
)
def test_bytes_that_are_no_message_are_refused(wire, data, says):
    with pytest.raises(WireError, match=says):
        wire.unpack(data, WireLimits(max_message_bytes=100))


# Pictures in messages of vla-eval, raw and encoded.


def picture(channels: int = 3) -> np.ndarray:
    ramp = np.arange(24 * 32, dtype=np.float64).reshape(24, 32, 1) / 4
    return np.broadcast_to(ramp, (24, 32, channels)).astype(np.uint8)


def travelled(payload, picture_format):
    return VlaEvalCodec.unpack(
        VlaEvalCodec.pack(Message(kind=OBSERVATION, payload=payload, number=1), picture_format)
    ).payload


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
    with pytest.raises(WireError, match="4 channels as JPEG may not travel"):
        travelled({"image": picture(4)}, "jpeg")


def as_png(shown: np.ndarray) -> dict[str, Any]:
    message = Message(kind=OBSERVATION, payload={"front": shown}, number=1)
    return msgpack.unpackb(VlaEvalCodec.pack(message, "png"))["payload"]["front"]


def test_png_is_what_any_reader_of_png_reads():
    value = as_png(picture())
    assert np.array_equal(np.array(Image.open(io.BytesIO(value["data"]))), picture())
    assert value["shape"] == [24, 32, 3]


def test_a_message_full_of_pictures_takes_no_memory_for_their_pixels():
    value = as_png(np.zeros((2048, 2048, 3), np.uint8))
    data = VlaEvalCodec.pack(Message(kind=OBSERVATION, payload={str(number): value for number in range(40)}, number=1))
    tracemalloc.start()
    VlaEvalCodec.unpack(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(data) + 1_000_000
