"""What is written without HDF5's library must be what the library reads."""

from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.storage.episode_file import (
    NAMES_PER_NODE,
    SUPERBLOCK_BYTES,
    TEXT_REFERENCE,
    Block,
    attribute_message,
    group,
    superblock,
    text_heap,
)


def write(path, *blocks):
    """Write blocks one after the other; the last one starts with the root group."""
    content, starts = bytearray(SUPERBLOCK_BYTES), []
    for block in blocks:
        starts.append(len(content))
        content += block.at(len(content))
    content[:SUPERBLOCK_BYTES] = superblock(root_address=starts[-1], end_address=len(content))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("num_members", [0, 1, 8, 9, 8 * 32, 8 * 32 + 1, 20_000])
def test_a_group_of_any_size_is_read_by_the_library(tmp_path, num_members):
    member, _ = group([])
    names = [f"demo_{index}" for index in range(num_members)]
    root, _ = group([(name, -len(member.content)) for name in names])
    with h5py.File(write(tmp_path / "x.h5", member, root)) as file:
        assert len(file) == num_members
        assert list(file) == sorted(names)
        for name in names[:3] + names[-3:]:
            assert isinstance(file[name], h5py.Group)
        assert "demo_x" not in file
        assert "a" not in file


def test_a_group_can_be_added_to_and_taken_from(tmp_path):
    member, _ = group([])
    root, _ = group([(f"g{index:02}", -len(member.content)) for index in range(NAMES_PER_NODE * 2)])
    path = write(tmp_path / "x.h5", member, root)
    with h5py.File(path, "r+") as file:
        for index in range(100):
            file.create_dataset(f"a much longer name than those before {index}", data=np.arange(index + 1))
        del file["g03"]
        file["g04"].attrs["note"] = "changed"
    with h5py.File(path) as file:
        assert len(file) == 2 * NAMES_PER_NODE - 1 + 100
        last: Any = file["a much longer name than those before 99"]
        assert last[-1] == 99
        assert file["g04"].attrs["note"] == "changed"


@pytest.mark.parametrize("size", [0, 1, 8, 4000, 4040, 4048, 4056, 4064, 4072, 100_000])
def test_texts_of_any_size_are_read_by_the_library(tmp_path, size):
    message, inside = attribute_message("note", None)
    root, (at,) = group([], [message])
    texts = ["first", "é" * (size // 2) + "x" * (size % 2), "last"]
    heap = Block(content=text_heap([text.encode() for text in texts]), pointers=np.zeros(0, np.int64))
    content = bytearray(root.content)
    reference = TEXT_REFERENCE.pack(size, SUPERBLOCK_BYTES, 2)
    content[at + inside : at + inside + len(reference)] = reference
    with h5py.File(write(tmp_path / "x.h5", heap, Block(content=content, pointers=root.pointers))) as file:
        assert file.attrs["note"] == texts[1]
