"""What a recording declares is held against what its file has room for."""

import traceback

import h5py
import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.episodes import (
    check_array,
    read_actions,
    read_episode,
)
from tests.storage.hdf5 import hostile_recordings as hostile

REFUSED = {
    hostile.huge: "declares 8,000,000,000,000 bytes, of which 0 are stored",
    hostile.huge_in_chunks: "declares 80,000,000,000 bytes, of which 0 are stored",
    hostile.huge_and_compressed: "declares 80,000,000,000 bytes",
    hostile.never_written: "declares 240 bytes, of which 0 are stored",
    hostile.giant_chunk: "declares 3,200,000,000 bytes",
    hostile.bomb: "declares 4,294,967,296 bytes",
    hostile.chunk_that_swells: "holds a chunk that unpacks into more than a chunk",
    hostile.null: "has no shape and holds nothing",
    hostile.of_type("g"): "only numbers are read, of up to 8 bytes",
    hostile.scalar: r"has shape \(\), not \(num_samples, action_dim\)",
}


@pytest.mark.parametrize(("create", "words"), REFUSED.items(), ids=REFUSED.values())
def test_an_array_that_declares_more_than_is_stored_is_refused_by_what_it_declares(tmp_path, create, words):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        create(file.create_group("data/demo_0"), "actions")
    with pytest.raises(StorageError, match=words):
        read_actions(path, 0)


def test_black_pictures_are_read_however_well_they_compress(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        pictures = np.zeros((200, 64, 64, 3), np.uint8)
        file.create_group("data/demo_0").create_dataset(
            "black", data=pictures, compression="gzip", chunks=pictures.shape
        )
    assert read_episode(path, 0).arrays["black"].shape == (200, 64, 64, 3)


def test_no_more_members_are_looked_at_than_a_file_has_room_for(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("data/demo_0")
        for _ in range(12):
            group["one"] = file.create_group(None)
            group["again"] = group["one"]
            group = group["one"]
    with pytest.raises(StorageError, match="declares more than its file has room for: its groups hold each other"):
        read_episode(path, 0)


def test_an_array_is_paid_for_once_and_not_for_every_name(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        values = file.create_dataset("data/demo_0/a", data=np.zeros(10_000, np.float32))
        assert check_array(values.id, "a") == (40_000, False)
        file["data/demo_0/b"] = values
    with pytest.raises(StorageError, match=r"demo_0/b declares more than .*: arrays share what they hold"):
        read_episode(path, 0)


def test_an_error_about_a_virtual_dataset_holds_none_of_its_properties(tmp_path):
    # HDF5 2.0 crashes at the end of a process that still holds them, and an error may be kept until then.
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((3, 2), np.float32)
        layout[:] = h5py.VirtualSource("elsewhere.h5", "actions", (3, 2))
        file.create_virtual_dataset("actions", layout)
    with h5py.File(tmp_path / "virtual.h5") as file, pytest.raises(StorageError, match="from other files") as caught:
        check_array(file["actions"].id, "actions")
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert not any(isinstance(value, h5py.h5p.PropID) for value in held)
