"""Pictures in messages of vla-eval, raw and encoded."""

import io
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image

from arena_wire.messages import WireError
from isaaclab_arena_gr00t.remote.protocols import OBSERVATION, Message, VlaEvalCodec


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
