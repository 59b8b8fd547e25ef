"""Files of weights that are cut off or lie about their sizes are named, and nothing of them is loaded."""

import json
import struct
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import MAX_HEADER_BYTES, wrong_with_safetensors

WHOLE = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}


def safetensors(directory: Path, header: object, num_bytes: int = 32, *, length: int | None = None) -> Path:
    """Write a safetensors file with any header and so many bytes of weights."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = directory / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(num_bytes))
    return file


def with_entry(**changes: object) -> dict:
    return {**WHOLE, "a": {key: value for key, value in {**WHOLE["a"], **changes}.items() if value is not ...}}


def test_a_whole_safetensors_file_is_let_in(tmp_path):
    assert wrong_with_safetensors(safetensors(tmp_path, {"__metadata__": {"format": "pt"}, **WHOLE})) is None
    assert wrong_with_safetensors(safetensors(tmp_path, {}, 0)) is None


@pytest.mark.parametrize(
    ("header", "num_bytes", "message"),
    [
        (WHOLE, 31, "it holds 31 bytes of weights, and its header says 32"),
        (WHOLE, 33, "it holds 33 bytes of weights, and its header says 32"),
        (with_entry(shape=[2, 4]), 32, "'a' has 24 bytes, and its shape [2, 4] of F32 has others"),
        (with_entry(shape=[2**40, 2**40]), 32, "'a' has 24 bytes"),
        (with_entry(data_offsets=[0, 20], shape=[5]), 32, "overlap, or there are gaps"),
        (with_entry(data_offsets=[8, 32]), 32, "overlap, or there are gaps"),
        (with_entry(shape=[-2, -3]), 32, "sizes that are no whole numbers"),
        (with_entry(shape=[2.0, 3]), 32, "sizes that are no whole numbers"),
        (with_entry(shape=[True, 6]), 32, "sizes that are no whole numbers"),
        (with_entry(dtype=...), 32, "does not say what 'a' is"),
        (with_entry(data_offsets=[0]), 32, "does not say what 'a' is"),
        ({"a": 3}, 0, "does not say what 'a' is"),
        ([], 0, "its header is no mapping"),
        (b"{", 0, "its header is no JSON"),
        (b"\xff\xfe", 0, "its header is no JSON"),
        (b"[" * 100_000, 0, "its header is no JSON"),
    ],
)
def test_a_safetensors_file_whose_header_lies_is_named(tmp_path, header, num_bytes, message):
    assert message in str(wrong_with_safetensors(safetensors(tmp_path, header, num_bytes)))


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_safetensors_file_shorter_than_its_header_is_damaged(tmp_path, length):
    message = wrong_with_safetensors(safetensors(tmp_path, WHOLE, length=length))
    assert f"its header alone would have {length}" in str(message)
    (tmp_path / "model.safetensors").write_bytes(b"\1\0\0")
    assert "is damaged: it has 3 bytes" in str(wrong_with_safetensors(tmp_path / "model.safetensors"))


def test_the_largest_header_of_a_safetensors_file_has_a_hundred_million_bytes(tmp_path):
    file = tmp_path / "model.safetensors"
    for length, message in ((100_000_001, "has a header of 100000001 bytes"), (100_000_000, "its header is no JSON")):
        with file.open("wb") as stream:
            stream.write(struct.pack("<Q", length))
            stream.truncate(8 + length)
        assert message in str(wrong_with_safetensors(file))
    assert MAX_HEADER_BYTES == 100_000_000
