from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage import hdf5
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.recorded_episode import Compression, RecordedEpisode, checksum


def recorded(index: int, *, length: int = 5, **attributes) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    return RecordedEpisode(
        episode_index=index,
        arrays={
            "actions": generator.random((length, 4)).astype(np.float32),
            "states/articulation/robot/joint_position": generator.random((length, 7)),
            "camera_obs/front": generator.integers(0, 255, (length, 6, 6, 3), np.uint8),
            "dones": np.zeros(length, np.uint8),
            "nothing": np.zeros((length, 0), np.float32),
        },
        attributes={"job": "lift", "success": index % 2 == 0, "seed": 2**62 + index, **attributes},
        env_args={"env_name": "lift", "type": 2},
    )


def write_parts(folder, indices):
    parts = [folder / episode_file_name(index) for index in indices]
    for index, part in zip(indices, parts, strict=True):
        hdf5.write_episode(part, recorded(index, length=3 + index))
    return parts


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


def test_the_layout_is_robomimics(tmp_path):
    hdf5.consolidate(write_parts(tmp_path, [0, 2]), tmp_path / "dataset.hdf5")
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        data: Any = file["data"]
        assert sorted(data) == ["demo_0", "demo_2"]
        assert data.attrs["total"] == 3 + 5
        assert data.attrs["env_args"] == '{"env_name": "lift", "type": 2}'
        assert data["demo_2"].attrs["num_samples"] == 5
        assert data["demo_2"].attrs["success"]
        assert data["demo_2/states/articulation/robot/joint_position"].shape == (5, 7)


def test_an_episode_file_is_never_written_over(tmp_path):
    hdf5.write_episode(tmp_path / "e.h5", recorded(0))
    with pytest.raises(StorageError, match="exists already"):
        hdf5.write_episode(tmp_path / "e.h5", recorded(1))
    assert hdf5.list_episodes(tmp_path / "e.h5") == [0]


def test_episodes_are_listed_by_number_and_the_parts_are_gone(tmp_path):
    parts = write_parts(tmp_path, [10, 9, 2, 0])
    done = hdf5.consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 2, 9, 10)
    assert hdf5.list_episodes(tmp_path / "dataset.hdf5") == [0, 2, 9, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.hdf5"]


def test_a_damaged_part_stays_and_the_others_are_kept(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2])
    with h5py.File(parts[1], "r+") as file:
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] += 1
    parts[2].write_bytes(b"")
    done = hdf5.consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0,)
    assert [path for path, _ in done.damaged] == parts[1:]
    assert "not what was written" in done.damaged[0][1]
    assert parts[1].exists()
    assert parts[2].exists()


def test_consolidating_again_after_a_crash_ends_in_the_same_file(tmp_path):
    hdf5.consolidate(write_parts(tmp_path, [0, 1]), tmp_path / "dataset.hdf5")
    done = hdf5.consolidate(write_parts(tmp_path, [1, 2]), tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 1, 2)
    for index in (0, 1, 2):
        hdf5.verify_episode(tmp_path / "dataset.hdf5", index)


def test_two_different_recordings_of_one_episode_are_refused(tmp_path):
    hdf5.consolidate(write_parts(tmp_path, [0]), tmp_path / "dataset.hdf5")
    other = tmp_path / episode_file_name(0)
    hdf5.write_episode(other, recorded(0, length=9))
    with pytest.raises(StorageError, match="both hold demo_0"):
        hdf5.consolidate([other], tmp_path / "dataset.hdf5")
    assert other.exists()
    hdf5.verify_episode(tmp_path / "dataset.hdf5", 0)


def test_a_file_of_another_name_is_left_alone(tmp_path):
    stranger = tmp_path / "notes.h5"
    hdf5.write_episode(stranger, recorded(0))
    done = hdf5.consolidate([stranger], tmp_path / "dataset.hdf5")
    assert done.damaged[0][0] == stranger
    assert stranger.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no recording at"), (b"", "cannot read"), (b"not HDF5 at all", "cannot read")],
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


def test_zstd_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hdf5.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isaaclab-arena-mujoco\[zstd\]"):
        hdf5.check_compression(Compression.ZSTD)
    hdf5.check_compression(Compression.GZIP)


def test_the_checksum_knows_names_shapes_types_and_order_of_elements():
    array = np.arange(6, dtype=np.float32)
    base = checksum({"a": array})
    others = [{"b": array}, {"a": array.reshape(2, 3)}, {"a": array.astype(np.float64)}, {"a": array[::-1]}]
    assert len({base, *map(checksum, others)}) == 5
    assert checksum({"a": array, "b": array}) == checksum({"b": array, "a": array})
