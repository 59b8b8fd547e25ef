"""The bytes on the wire, written out by hand: NVIDIA's server and client send and read exactly these."""

import io

import msgpack
import numpy as np
import pytest
from gr00t.data.types import ModalityConfig
from gr00t.policy.server_client import MsgSerializer

from arena_wire.gr00t import ArrayFormat, pack, received, unpack
from arena_wire.messages import WireError, WireLimits

# np.save of float32 [[1, 2]]: magic, version 1.0, a header of 118 bytes padded to 128 in all, then eight bytes.
NPY = (
    b"\x93NUMPY\x01\x00\x76\x00"
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }" + b" " * 58 + b"\n"
    b"\x00\x00\x80\x3f\x00\x00\x00\x40"
)
ARRAY = b"\x82" + b"\xb1__ndarray_class__" + b"\xc3" + b"\xa6as_npy" + b"\xc4\x88" + NPY
# What msgpack_numpy 0.4.8 with msgpack 1.2.4 makes of the same array: a map whose keys are bytes.
NUMPY_MAP = (
    b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\x92\x01\x02"
    b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\x40"
)

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


def test_an_array_travels_as_the_map_of_msgpack_numpy_to_those_who_write_it_so():
    array = np.array([[1, 2]], np.float32)
    assert pack(array, ArrayFormat.NUMPY_MAP) == NUMPY_MAP
    read, arrays = received(NUMPY_MAP)
    assert arrays is ArrayFormat.NUMPY_MAP
    assert (read.dtype, read.tolist()) == (np.float32, [[1, 2]])
    assert read.flags.writeable
    assert received(ARRAY).arrays is ArrayFormat.NPY
    assert received(b"\x81\xa8endpoint\xa4ping").arrays is None


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"\x83\xc4\x02nd\xc2\xc4\x04type\xa3<f4\xc4\x04data\xc4\x04\x00\x00\xc0\x3f", np.float32(1.5)),
        (b"\x83\xc4\x02nd\xc2\xc4\x04type\xa3|b1\xc4\x04data\xc4\x01\x01", np.bool_(True)),
    ],
)
def test_a_number_of_numpys_keeps_its_type(data, number):
    assert unpack(data) == number
    assert type(unpack(data)) is type(number)


def test_a_modality_travels_under_both_names_so_that_older_and_newer_clients_know_it():
    config = ModalityConfig(delta_indices=[0], modality_keys=["front"])
    fields = b"\xa7as_json\x82\xaddelta_indices\x91\x00\xadmodality_keys\x91\xa5front"
    older, newer = b"\xb8__ModalityConfig_class__\xc3", b"\xb2__ModalityConfig__\xc3"
    assert pack(config) == b"\x83" + older + newer + fields
    assert received(b"\x83" + older + newer + fields, modality=ModalityConfig) == (config, ArrayFormat.NPY)
    assert received(b"\x82" + older + fields, modality=ModalityConfig) == (config, ArrayFormat.NPY)
    assert received(b"\x82" + newer + fields, modality=ModalityConfig) == (config, ArrayFormat.NUMPY_MAP)


def test_fields_that_only_nvidias_modality_has_are_left_out():
    fields = {
        "delta_indices": [0],
        "modality_keys": ["arm"],
        "sin_cos_embedding_keys": None,
        "mean_std_embedding_keys": None,
        "action_configs": [{"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}],
    }
    data = packed({"__ModalityConfig_class__": True, "as_json": fields})
    assert unpack(data, modality=ModalityConfig) == ModalityConfig(delta_indices=[0], modality_keys=["arm"])


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
    newer = unpack(pack({"a": array}, ArrayFormat.NUMPY_MAP))["a"]
    for read in (MsgSerializer.from_bytes(MsgSerializer.to_bytes({"a": array}))["a"], newer):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert np.array_equal(read, array)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 1, 4, 4, 3), np.uint8), np.array(1.5), np.zeros((0, 3)), np.arange(3, dtype=">i2")]
)
def test_an_array_is_written_as_np_save_writes_it(array):
    assert pack(array).endswith(saved(array))


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["a"]), np.array([1j]), np.zeros(1, "f4,i4")])
def test_an_array_of_something_else_is_not_written(array):
    for arrays in ArrayFormat:
        with pytest.raises(WireError, match="may not travel"):
            pack(array, arrays)


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


def numpy_map(**changes: object) -> bytes:
    """Return the map of float32 [[1, 2]] with other fields; a field that is None is left out."""
    fields = {"nd": True, "type": "<f4", "kind": b"", "shape": [1, 2], "data": NPY[-8:], **changes}
    return packed({key.encode(): value for key, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        # What msgpack_numpy would unpickle, and other ways to say the same.
        (numpy_map(kind=b"O", type=[["", "|O"]], data=b"cos\nsystem\n(S'true'\ntR."), "kind b'O' may not travel"),
        (numpy_map(kind="O", type="|O"), "kind 'O' may not travel"),
        (numpy_map(type="|O", shape=[1, 1]), "object may not travel"),
        (numpy_map(nd=1, kind=b"O", type="|O"), "kind b'O' may not travel"),
        (numpy_map(nd=1), "true or false"),
        (numpy_map(kind=b"V", type=[["f0", "<f4"], ["f1", "<i4"]], shape=[1]), "kind b'V' may not travel"),
        (numpy_map(type=[["f0", "<f4"], ["f1", "<i4"]], shape=[1]), "no array of type"),
        (numpy_map(type="f4,i4", shape=[1]), "no array of type"),
        (numpy_map(type="(2,)f4", shape=[1]), "no array of type"),
        (numpy_map(type="|V8", shape=[1]), "may not travel"),
        (numpy_map(type="<c8", shape=[1]), "complex64 may not travel"),
        (numpy_map(nd=False, type="<c8", shape=None), "complex64 may not travel"),
        (numpy_map(type="<U2", shape=[1]), "may not travel"),
        (numpy_map(type="|S8", shape=[1]), "may not travel"),
        (numpy_map(type="<M8[s]", shape=[1]), "no array of type"),
        (numpy_map(type="<m8", shape=[1]), "may not travel"),
        (numpy_map(type="<f999999999"), "no array of type"),
        (numpy_map(type="q" * 1000), "no array of type"),
        (numpy_map(type=4), "no array of type"),
        (numpy_map(type=None), "no array of type that is a NoneType"),
        (numpy_map(shape=[1, 3]), r"\(1, 3\) and type float32 came with 8 bytes"),
        (numpy_map(shape=[1, 2**40]), "came with 8 bytes"),
        (numpy_map(shape=[2**62, 2**62]), "came with 8 bytes"),
        (numpy_map(shape=[-1, -2]), "came with 8 bytes"),
        (numpy_map(shape=[1.0, 2]), "whole numbers"),
        (numpy_map(shape=[True, 2]), "whole numbers"),
        (numpy_map(shape=[1] * 32 + [2]), "came with 8 bytes"),
        (numpy_map(shape=["a"] * 1000), "whole numbers"),
        (numpy_map(shape=2), "shape"),
        (numpy_map(shape=None), "shape"),
        (numpy_map(data="text"), "travels as bytes"),
        (numpy_map(data=None), "travels as bytes"),
        (numpy_map(nd=False), "came with 8 bytes"),
        (packed({b"complex": True, b"data": "(1+2j)"}), "a complex number may not travel"),
    ],
)
def test_a_map_of_msgpack_numpy_that_lies_about_itself_or_holds_more_than_numbers_is_refused(data, says):
    with pytest.raises(WireError, match=says) as caught:
        unpack(data)
    assert len(str(caught.value)) < 300


def test_nothing_is_made_of_a_map_that_calls_itself_an_array_in_other_letters():
    """msgpack_numpy knows keys of bytes only; text is what a user's own map may hold."""
    assert unpack(packed({"nd": True, "kind": "O", "data": "x"})) == {"nd": True, "kind": "O", "data": "x"}


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
        (packed({"__ModalityConfig__": True}), "modality"),
        (packed({"__ModalityConfig_class__": True, "as_json": "{}"}), "GR00T N1.5"),
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
