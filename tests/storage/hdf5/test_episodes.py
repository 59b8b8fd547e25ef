from pathlib import Path

import h5py
import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, checksum
from tests.security.test_recordings import demo, recording
from tests.storage.recordings import recorded


@pytest.mark.parametrize("compression", Compression)
def test_an_episode_comes_back_bit_for_bit(tmp_path, compression):
    written = recorded(3)
    crc = hdf5.write_episode(tmp_path / "e.h5", written, compression)
    read = hdf5.read_episode(tmp_path / "e.h5", 3)
    assert read.env_args == written.env_args
    assert read.attributes == {**written.attributes, "num_samples": 5, "checksum": crc}
    assert read.arrays.keys() == written.arrays.keys()
    for name, array in written.arrays.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array)


def test_compression_makes_a_file_smaller(tmp_path):
    smooth = RecordedEpisode(
        episode_index=0, arrays={"actions": np.zeros((4000, 8), np.float32)}, attributes={}, env_args={}
    )
    sizes = {}
    for compression in Compression:
        path = tmp_path / compression
        hdf5.write_episode(path, smooth, compression)
        sizes[compression] = path.stat().st_size
    assert all(sizes[each] < sizes[Compression.NONE] / 4 for each in Compression if each is not Compression.NONE)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_an_episode_file_is_written_over_only_on_demand(tmp_path, compression):
    hdf5.write_episode(tmp_path / "e.h5", recorded(0))
    with pytest.raises(StorageError, match="exists already"):
        hdf5.write_episode(tmp_path / "e.h5", recorded(1), compression)
    assert hdf5.list_episodes(tmp_path / "e.h5") == [0]
    hdf5.write_episode(tmp_path / "e.h5", recorded(1), compression, overwrite=True)
    assert hdf5.list_episodes(tmp_path / "e.h5") == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "cannot read"), (b"not HDF5 at all", "cannot read")],
)
def test_what_is_no_recording_is_named(tmp_path, content, message):
    path = tmp_path / "x.hdf5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match=message):
        hdf5.list_episodes(path)


def test_hdf5_of_another_kind_is_refused(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["numbers"] = [1, 2]
    with pytest.raises(StorageError, match="is no recording"):
        hdf5.list_episodes(tmp_path / "x.hdf5")


def test_missing_episodes_and_actions_are_named(tmp_path):
    hdf5.write_episode(tmp_path / "e.h5", recorded(0))
    with pytest.raises(StorageError, match="holds no demo_4"):
        hdf5.read_actions(tmp_path / "e.h5", 4)
    with h5py.File(tmp_path / "e.h5", "r+") as file:
        del file["data/demo_0/actions"]
    with pytest.raises(StorageError, match="demo_0 holds no 'actions'"):
        hdf5.read_actions(tmp_path / "e.h5", 0)


def test_the_checksum_knows_names_shapes_types_and_order_of_elements():
    array = np.arange(6, dtype=np.float32)
    base = checksum({"a": array})
    others = [{"b": array}, {"a": array.reshape(2, 3)}, {"a": array.astype(np.float64)}, {"a": array[::-1]}]
    assert len({base, *map(checksum, others)}) == 5
    assert checksum({"a": array, "b": array}) == checksum({"b": array, "a": array})


def test_actions_that_are_no_numbers_are_refused(tmp_path):
    def words(file: h5py.File, secret: Path) -> None:
        demo(file)["actions"] = np.array([[b"push"]], dtype=object)

    with pytest.raises(StorageError, match="/data/demo_0/actions holds object, and only numbers are read"):
        hdf5.read_actions(recording(tmp_path, words), 0)
