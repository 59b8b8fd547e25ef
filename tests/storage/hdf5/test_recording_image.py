"""Files that are made without HDF5's library, against files that it makes."""

from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.storage import dataset as dataset_assembly
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, block_of
from isaaclab_arena.storage.layout import episode_file_name
from tests.storage.recordings import recorded, write_parts

TYPES = (np.float16, np.float32, np.float64, np.uint8, np.int8, np.int32, np.int64, np.uint64, bool, ">f8")


def many_types(index: int) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    arrays = {f"typed/{np.dtype(kind)}": (generator.random((7, 3)) * 50).astype(kind) for kind in TYPES}
    arrays |= {f"deep/{'er/' * depth}x": np.arange(depth, dtype=np.int16) for depth in range(12)}
    arrays |= {f"wide/array_{number}": generator.random((7, 1)).astype(np.float32) for number in range(40)}
    arrays |= {"scalar": np.array(3.5), "backwards": np.arange(9)[::-1], "empty": np.zeros((7, 0, 2))}
    return RecordedEpisode(
        episode_index=index,
        arrays={"actions": generator.random((7, 2)).astype(np.float32), **arrays},
        attributes={
            "text": "Grüße",
            "none": "",
            "long": "x" * 9000,
            "yes": True,
            "no": False,
            "many": 2**63,
            "pi": 3.1,
        },
        env_args={"env_name": "lift", "env_kwargs": {"a": [1, "ü"]}},
    )


def everything(path) -> dict[str, object]:
    """Content of a file as a plain reader sees it: groups, types, shapes, bytes, attributes."""
    seen: dict[str, object] = {}

    def see(name, item):
        attributes = {key: (type(value), value) for key, value in item.attrs.items()}
        content = (item.dtype.str, item.shape, item[()].tobytes()) if isinstance(item, h5py.Dataset) else None
        seen[name] = (content, attributes)

    with h5py.File(path) as file:
        file.visititems(see)
    return seen


def test_a_plain_reader_sees_what_the_library_would_have_written(tmp_path):
    ours, theirs = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    hdf5.write_episode(ours, many_types(3))
    hdf5.write_episode(theirs, many_types(3), Compression.GZIP)
    assert block_of(theirs.read_bytes()) is None
    assert everything(ours) == everything(theirs)


def test_a_dataset_put_together_from_bytes_is_what_the_library_copies_together(tmp_path):
    parts = [tmp_path / episode_file_name(index) for index in (0, 3, 11)]
    for part, episode in zip(parts, (recorded(0), many_types(3), recorded(11, length=200)), strict=True):
        hdf5.write_episode(part, episode)
    sources = list(zip((0, 3, 11), parts, strict=True))
    dataset_assembly.copy_episodes(sources, tmp_path / "theirs.hdf5")
    assert dataset_assembly.assemble_dataset(sources, tmp_path / "ours.hdf5")
    assert everything(tmp_path / "ours.hdf5") == everything(tmp_path / "theirs.hdf5")
    hdf5.verify_episodes(tmp_path / "ours.hdf5", [0, 3, 11])


def test_other_programs_can_change_a_dataset(tmp_path):
    consolidate(write_parts(tmp_path, [0, 1, 2]), tmp_path / "dataset.hdf5")
    with h5py.File(tmp_path / "dataset.hdf5", "r+") as file:
        file.create_dataset("mask/train", data=np.array([b"demo_0", b"demo_2"]))
        file["data/demo_1"].attrs["note"] = "n" * 5000
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] = 7
        del file["data/demo_2/states"]
        file.copy("data/demo_0", file["data"], name="demo_9")
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        mask: Any = file["mask/train"]
        actions: Any = file["data/demo_1/actions"]
        data: Any = file["data"]
        assert mask[1] == b"demo_2"
        assert actions[0, 0] == 7
        assert sorted(data) == ["demo_0", "demo_1", "demo_2", "demo_9"]
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0, 9])


@pytest.mark.parametrize("part_of_file", ["index", "groups", "arrays", "texts", "end"])
def test_a_bit_that_changed_anywhere_is_noticed(tmp_path, part_of_file):
    path = tmp_path / episode_file_name(4)
    hdf5.write_episode(path, recorded(4))
    content = bytearray(path.read_bytes())
    places = {"index": 130, "groups": content.index(b"SNOD"), "arrays": content.index(recorded(4).arrays["actions"])}
    places |= {"texts": content.index(b"lift"), "end": len(content) - 1}
    assert block_of(content) is not None
    content[places[part_of_file]] ^= 4
    assert block_of(content) is None


def test_a_file_cut_short_or_named_after_another_episode_is_not_taken_over_unread(tmp_path):
    path = tmp_path / episode_file_name(4)
    hdf5.write_episode(path, recorded(4))
    content = path.read_bytes()
    assert all(block_of(content[:size]) is None for size in range(0, len(content), 97))
    assert not dataset_assembly.assemble_dataset([(5, path)], tmp_path / "dataset.hdf5")


def test_episodes_of_the_library_and_of_ours_end_in_one_dataset(tmp_path):
    parts = write_parts(tmp_path, [0, 1])
    parts.append(tmp_path / episode_file_name(2))
    hdf5.write_episode(parts[2], recorded(2), Compression.GZIP)
    done = consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 1, 2)
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0, 1, 2])
