from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.episodes import RecordedArray, RecordedSteps
from tests.storage.recordings import recorded, write_parts


@pytest.mark.parametrize("compression", Compression)
def test_steps_are_what_was_recorded(tmp_path, compression):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(3), compression)
    steps = RecordedSteps()
    assert steps.names(path, 3) == sorted(recorded(3).arrays)
    for name, array in recorded(3).arrays.items():
        found = steps.array(RecordedArray(file=path, episode_index=3, name=name))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found[1:3], array[1:3])


def test_every_episode_of_a_dataset_is_found(tmp_path):
    dataset = tmp_path / "dataset_lift.hdf5"
    consolidate(write_parts(tmp_path, [0, 1, 5]), dataset)
    steps = RecordedSteps()
    for index in (5, 0, 1):
        found = steps.array(RecordedArray(file=dataset, episode_index=index, name="actions"))
        np.testing.assert_array_equal(found, recorded(index, length=3 + index).arrays["actions"])


def test_of_an_uncompressed_recording_nothing_is_kept_in_memory(tmp_path):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(0))
    found = RecordedSteps().array(RecordedArray(file=path, episode_index=0, name="actions"))
    assert isinstance(found, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_compressed_arrays_are_kept_up_to_a_limit(tmp_path):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(0), Compression.GZIP)
    reads: list[str] = []

    def read(file: Path, index: int, name: str) -> np.ndarray:
        reads.append(name)
        return hdf5.read_array(file, index, name)

    steps = RecordedSteps(kept_bytes=1, read=read)
    for name in ("actions", "actions", "dones", "actions"):
        steps.array(RecordedArray(file=path, episode_index=0, name=name))
    assert reads == ["actions", "dones", "actions"]


def test_what_is_not_there_is_named(tmp_path):
    hdf5.write_episode(tmp_path / "e.h5", recorded(0))
    with pytest.raises(StorageError, match="demo_0 holds no 'obs/nothing'"):
        RecordedSteps().array(RecordedArray(file=tmp_path / "e.h5", episode_index=0, name="obs/nothing"))
    with pytest.raises(StorageError, match="holds no demo_4"):
        RecordedSteps().names(tmp_path / "e.h5", 4)
