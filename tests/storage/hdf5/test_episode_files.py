"""Files of single episodes, and the dataset that they become."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.atomic import temporary_path
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import (
    NAMES_PER_NODE,
    SUPERBLOCK_BYTES,
    TEXT_REFERENCE,
    Block,
    Compression,
    RecordedEpisode,
    attribute_message,
    checksum,
    group,
    superblock,
    text_heap,
)
from isaaclab_arena.storage.episodes import opened
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.recovery import Diagnosis, RecordedCopy, repair_job
from tests.security.test_recordings import LEADS, recording
from tests.storage.plan_entries import plan_entry
from tests.storage.recordings import recorded, write_parts

# Every changed byte of an episode is found.

SEED = 7


def answer(read: Callable[[], object]) -> object:
    """Result of a reader, or its refusal."""
    try:
        found = read()
    except StorageError:
        return "refused"
    return "refused" if isinstance(found, str) else found


def by_the_library(path, index):
    """Attributes of an episode whose arrays were compared with their checksum."""
    with opened(path) as recording:
        return recording.verified_attributes(index)


@pytest.mark.parametrize("name", ["dataset.hdf5", episode_file_name(1)])
def test_no_changed_byte_passes_that_the_library_would_refuse(tmp_path, name):
    first, second = write_parts(tmp_path, [0, 1])
    if name == "dataset.hdf5":
        consolidate([first, second], tmp_path / name)
        write_parts(tmp_path, [0])
    path, draw = tmp_path / name, random.Random(SEED)
    content = path.read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        at = draw.randrange(96, len(changed))
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        found = answer(lambda: hdf5.examine_episodes(path, [1])[0])
        expected = answer(lambda: by_the_library(path, 1))
        assert found == expected, f"seed {SEED}: byte {at} is changed, and {found} is read"


def test_a_dataset_that_grows_holds_the_same_as_one_that_was_made_at_once_also_after_a_crash(tmp_path):
    consolidate(write_parts(tmp_path, [0, 2]), tmp_path / "grown.hdf5")
    again = consolidate(write_parts(tmp_path, [1, 2, 3]), tmp_path / "grown.hdf5")
    assert (again.episode_indices, again.damaged) == ((0, 1, 2, 3), ())
    consolidate(write_parts(tmp_path, range(4)), tmp_path / "at once.hdf5")
    grown, at_once = (
        [hdf5.read_episode(tmp_path / name, index) for index in range(4)] for name in ("grown.hdf5", "at once.hdf5")
    )
    assert [each.attributes for each in grown] == [each.attributes for each in at_once]
    assert hdf5.read_totals(tmp_path / "grown.hdf5") == hdf5.read_totals(tmp_path / "at once.hdf5")


def test_a_dataset_that_was_compressed_grows_by_the_library(tmp_path):
    paths = [tmp_path / episode_file_name(index) for index in range(3)]
    hdf5.write_episode(paths[0], recorded(0), Compression.GZIP)
    consolidate(paths[:1], tmp_path / "dataset.hdf5")
    for index in (1, 2):
        hdf5.write_episode(paths[index], recorded(index))
    assert consolidate(paths[1:], tmp_path / "dataset.hdf5").episode_indices == (0, 1, 2)
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", range(3))


# What is written without HDF5's library must be what the library reads.


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


def test_what_is_no_recording_is_named(tmp_path):
    path = tmp_path / "x.hdf5"
    for content, words in ((None, "No such file"), (b"", "cannot read"), (b"not HDF5 at all", "cannot read")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(StorageError, match=words):
            hdf5.list_episodes(path)
    with h5py.File(path, "w") as file:
        file["numbers"] = [1, 2]
    with pytest.raises(StorageError, match="not a recording"):
        hdf5.list_episodes(path)


def test_missing_episodes_and_actions_and_those_that_are_no_numbers_are_named(tmp_path):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(0))
    with pytest.raises(StorageError, match="no demo_4"):
        hdf5.read_actions(path, 4)
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/actions"]
    with pytest.raises(StorageError, match="no 'actions'"):
        hdf5.read_actions(path, 0)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/actions"] = np.array([[b"push"]], dtype=object)
    with pytest.raises(StorageError, match="/data/demo_0/actions holds object"):
        hdf5.read_actions(path, 0)


def test_the_checksum_knows_names_shapes_types_and_order_of_elements():
    array = np.arange(6, dtype=np.float32)
    base = checksum({"a": array})
    others = [{"b": array}, {"a": array.reshape(2, 3)}, {"a": array.astype(np.float64)}, {"a": array[::-1]}]
    assert len({base, *map(checksum, others)}) == 5
    assert checksum({"a": array, "b": array}) == checksum({"b": array, "a": array})


def test_the_layout_is_robomimics_and_the_parts_are_gone(tmp_path):
    done = consolidate(write_parts(tmp_path, [10, 9, 2, 0]), tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 2, 9, 10)
    assert hdf5.list_episodes(tmp_path / "dataset.hdf5") == [0, 2, 9, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.hdf5"]
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        data: Any = file["data"]
        assert set(data) == {"demo_0", "demo_2", "demo_9", "demo_10"}
        assert data.attrs["total"] == 3 + 5 + 12 + 13
        assert data.attrs["env_args"] == '{"env_name": "lift", "type": 2}'
        assert data["demo_2"].attrs["num_samples"] == 5
        assert data["demo_2"].attrs["success"]
        assert data["demo_2/states/articulation/robot/joint_position"].shape == (5, 7)


@pytest.mark.parametrize("number", [3, 110])
def test_a_part_that_cannot_be_removed_is_named_and_makes_no_loss_of_the_others(tmp_path, number):
    """Very many are removed by several threads."""
    parts = write_parts(tmp_path, range(number))
    with os_refuses_to_remove(parts[1]), pytest.raises(StorageError, match=r"e000001\.h5"):
        consolidate(parts, tmp_path / "dataset.hdf5")
    assert hdf5.list_episodes(tmp_path / "dataset.hdf5") == list(range(number))
    assert consolidate(parts, tmp_path / "dataset.hdf5").loss is None
    assert sorted(tmp_path.iterdir()) == [tmp_path / "dataset.hdf5"]


def test_parts_that_vanish_are_a_loss_and_damaged_ones_and_strangers_stay(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2, 3])
    with h5py.File(parts[1], "r+") as file:
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] += 1
    parts[2].write_bytes(b"")
    parts[3].unlink()
    stranger = tmp_path / "notes.h5"
    hdf5.write_episode(stranger, recorded(0))
    done = consolidate([*parts, stranger], tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0,)
    damaged = dict(done.damaged)
    assert {*damaged} == {*parts[1:], stranger}
    assert "not what was written" in damaged[parts[1]]
    assert "is gone" in damaged[parts[3]]
    assert all(each.exists() for each in (parts[1], parts[2], stranger))
    assert "4 episodes" in str(done.loss)


def test_parts_that_another_process_has_brought_in_already_are_no_damage(tmp_path):
    parts = write_parts(tmp_path, [0, 1])
    consolidate(parts, tmp_path / "dataset.hdf5")
    done = consolidate([*parts, *write_parts(tmp_path, [2])], tmp_path / "dataset.hdf5")
    assert (done.episode_indices, done.damaged) == ((0, 1, 2), ())


@contextmanager
def os_refuses_to_remove(path: Path) -> Iterator[None]:
    unlink = Path.unlink

    def refuse(each: Path, missing_ok: bool = False) -> None:
        if each == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(each))
        unlink(each, missing_ok)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Path, "unlink", refuse)
        yield


def test_two_different_recordings_of_one_episode_are_refused(tmp_path):
    consolidate(write_parts(tmp_path, [0]), tmp_path / "dataset.hdf5")
    other = tmp_path / episode_file_name(0)
    hdf5.write_episode(other, recorded(0, length=9))
    with pytest.raises(StorageError, match="both hold demo_0"):
        consolidate([other], tmp_path / "dataset.hdf5")
    assert other.exists()
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0])


def files_at_each_flush(monkeypatch, directory) -> list[tuple[str, set[str]]]:
    """Note, whenever a file is brought to the disk, which it is and what is in a directory at that moment."""
    noted: list[tuple[str, set[str]]] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        noted.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, {path.name for path in directory.iterdir()}))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return noted


def test_a_dataset_is_on_the_disk_before_it_is_in_place_and_before_the_parts_are_removed(tmp_path, monkeypatch):
    noted = files_at_each_flush(monkeypatch, tmp_path)
    parts = write_parts(tmp_path, [0, 1])
    consolidate(parts, tmp_path / "dataset.hdf5")
    ((flushed, there),) = noted
    assert flushed == temporary_path(tmp_path / "dataset.hdf5").name
    assert there == {flushed, *(part.name for part in parts)}


def test_a_dataset_that_lost_episodes_is_on_the_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    dataset = tmp_path / "dataset.hdf5"
    consolidate(write_parts(tmp_path, [0, 1]), dataset)
    noted = files_at_each_flush(monkeypatch, tmp_path)
    dropped = RecordedCopy(episode_index=0, path=dataset, checksum=None)
    repair_job(tmp_path, Diagnosis(job=plan_entry("lift"), discarded=[(dropped, None)]))
    assert noted == [(temporary_path(dataset).name, {temporary_path(dataset).name, dataset.name})]
    assert hdf5.list_episodes(dataset) == [1]


@pytest.mark.parametrize("lead", LEADS)
def test_consolidation_brings_nothing_of_another_file_into_a_dataset(tmp_path, lead):
    make, message = LEADS[lead]
    path = recording(tmp_path, make)
    result = consolidate([path], tmp_path / "dataset.hdf5")
    assert result.episode_indices == ()
    assert [(damaged, message in reason) for damaged, reason in result.damaged] == [(path, True)]
    assert path.exists()
