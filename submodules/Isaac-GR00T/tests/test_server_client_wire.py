"""The bytes on the wire, written out by hand: NVIDIA's server and client send and read exactly these."""

import io

import msgpack
import numpy as np
import pytest
from gr00t.data.types import ModalityConfig
from gr00t.policy.msgpack_numpy import MsgSerializer, WireError, WireLimits, pack, unpack

# np.save of float32 [[1, 2]]: magic, version 1.0, a header of 118 bytes padded to 128 in all, then eight bytes.
NPY = (
    b"\x93NUMPY\x01\x00\x76\x00"
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }" + b" " * 58 + b"\n"
    b"\x00\x00\x80\x3f\x00\x00\x00\x40"
)
ARRAY = b"\x82" + b"\xb1__ndarray_class__" + b"\xc3" + b"\xa6as_npy" + b"\xc4\x88" + NPY

GOLDEN = {
    "ping": ({"endpoint": "ping"}, b"\x81\xa8endpoint\xa4ping"),
    "kill with a token": (
        {"endpoint": "kill", "api_token": "secret"},
        b"\x82\xa8endpoint\xa4kill\xa9api_token\xa6secret",
    ),
    "pong": (
        {"status": "ok", "message": "Server is running"},
        b"\x82\xa6status\xa2ok\xa7message\xb1Server is running",
    ),
    "an error": (
        {"error": "Unauthorized: Invalid API token"},
        b"\x81\xa5error\xbfUnauthorized: Invalid API token",
    ),
    "nothing": (None, b"\xc0"),
    "reset": (
        {"endpoint": "reset", "data": {"options": None}},
        b"\x82\xa8endpoint\xa5reset\xa4data\x81\xa7options\xc0",
    ),
    "noise seeds": (
        {"options": {"noise_seeds": [7, 2**32]}},
        b"\x81\xa7options\x81\xabnoise_seeds\x92\x07\xcf\x00\x00\x00\x01\x00\x00\x00\x00",
    ),
}


def packed(message: object) -> bytes:
    """Return msgpack's own bytes, without this package's care."""
    return bytes(msgpack.packb(message) or b"")


@pytest.mark.parametrize(("message", "data"), GOLDEN.values(), ids=GOLDEN)
def test_a_message_has_the_bytes_that_nvidias_package_sends_and_reads(message, data):
    assert pack(message) == data
    assert unpack(data) == message


def test_an_array_travels_as_the_bytes_of_np_save():
    array = np.array([[1, 2]], np.float32)
    assert pack(array) == ARRAY
    read = unpack(ARRAY)
    assert read.dtype == np.float32
    assert np.array_equal(read, array)
    assert read.flags.writeable


def test_a_request_for_actions_is_written_in_nvidias_order():
    request = {
        "endpoint": "get_action",
        "data": {
            "observation": {"state": {"arm": np.array([[1, 2]], np.float32)}, "language": {"task": [["lift"]]}},
            "options": None,
        },
    }
    expected = (
        b"\x82\xa8endpoint\xaaget_action\xa4data\x82"
        b"\xabobservation\x82\xa5state\x81\xa3arm" + ARRAY + b"\xa8language\x81\xa4task\x91\x91\xa4lift"
        b"\xa7options\xc0"
    )
    assert pack(request) == expected


def test_a_modality_travels_as_json():
    config = ModalityConfig(delta_indices=[0], modality_keys=["front"])
    data = b"\x82\xb8__ModalityConfig_class__\xc3\xa7as_json\x82\xaddelta_indices\x91\x00\xadmodality_keys\x91\xa5front"
    assert pack(config) == data
    assert unpack(data) == config


def test_fields_that_only_nvidias_modality_has_are_left_out():
    fields = {
        "delta_indices": [0],
        "modality_keys": ["arm"],
        "sin_cos_embedding_keys": None,
        "mean_std_embedding_keys": None,
        "action_configs": [{"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}],
    }
    data = packed({"__ModalityConfig_class__": True, "as_json": fields})
    assert unpack(data) == ModalityConfig(delta_indices=[0], modality_keys=["arm"])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 1, 4, 4, 3), np.uint8),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array(True),
        np.zeros((0, 7), np.float64),
        np.arange(3, dtype=">f4"),
    ],
    ids=["images", "fortran", "scalar", "empty", "big-endian"],
)
def test_an_array_comes_back_as_it_was(array):
    read = MsgSerializer.from_bytes(MsgSerializer.to_bytes({"a": array}))["a"]
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 1, 4, 4, 3), np.uint8), np.array(1.5), np.zeros((0, 3)), np.arange(3, dtype=">i2")]
)
def test_an_array_is_written_as_np_save_writes_it(array):
    assert pack(array).endswith(saved(array))


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["a"]), np.array([1j]), np.zeros(1, "f4,i4")])
def test_an_array_of_something_else_is_not_written(array):
    with pytest.raises(WireError, match="may not travel"):
        pack(array)


def saved(array: np.ndarray, **options) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def zipped() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("as_npy", "says"),
    [
        (saved(np.array([{}], object), allow_pickle=True), "object"),
        (saved(np.array(["text"])), "<U4"),
        (NPY[:-1], "came with 7 bytes"),
        (NPY + b"\x00", "came with 9 bytes"),
        (NPY.replace(b"2), }" + b" " * 15, b"2" + b"0" * 15 + b"), }"), "came with 8 bytes"),
        (NPY.replace(b"(1, 2), }  ", b"(-1, -2), }"), "came with 8 bytes"),
        (zipped(), "damaged"),
        (b"\x93NUMPY\x03\x00" + NPY[8:], "damaged"),
        (b"", "damaged"),
        ("text", "bytes"),
        (None, "bytes"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(as_npy, says):
    data = packed({"__ndarray_class__": True, "as_npy": as_npy})
    with pytest.raises(WireError, match=says):
        unpack(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (b"\x82\xa8endpoint", "no msgpack"),
        (b"\xc0\xc0", "no msgpack"),
        (b"\xa2\xff\xfe", "no msgpack"),
        (b"\xdd\xff\xff\xff\xff", "no msgpack"),
        (b"\xdf\xff\xff\xff\xff", "no msgpack"),
        (b"\x91" * 20 + b"\xc0", "nested deeper than 16"),
        (b"\x91" * 100_000 + b"\xc0", "no msgpack|nested"),
        (b"\xd4\x05\x00", "extension type 5"),
        (b"\xd6\xff\x00\x00\x00\x00", "timestamp"),
        (packed({"__ModalityConfig_class__": True}), "modality"),
        (packed({"__ModalityConfig_class__": True, "as_json": {"delta_indices": "0"}}), "modality"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data, says):
    with pytest.raises(WireError, match=says):
        unpack(data)


def test_a_message_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="101 bytes, at most 100"):
        unpack(b"\xc1" * 101, WireLimits(max_message_bytes=100))


def test_what_has_no_bytes_is_refused():
    with pytest.raises(WireError, match="a set may not travel"):
        pack({"a": {1, 2}})
