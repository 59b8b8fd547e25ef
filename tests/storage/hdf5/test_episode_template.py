"""Episodes read back without HDF5's library: the same as with it, and nothing passes that the library refuses."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.episodes import EpisodeExaminer, OpenRecording, opened
from isaaclab_arena.storage.layout import episode_file_name
from tests.storage.recordings import recorded, write_parts

SEED = 7


def by_the_library(path, index):
    """Datasets that the library finds, the slow way."""
    with opened(path) as recording:
        return recording.verified_attributes(index)


def answer(read: Callable[[], object]) -> object:
    """Result of a reader, or its refusal."""
    try:
        found = read()
    except StorageError:
        return "refused"
    return "refused" if isinstance(found, StorageError) else found


def test_parts_are_read_back_as_the_library_reads_them(tmp_path):
    parts = write_parts(tmp_path, range(5))
    by_library: list[Path] = []

    def noted(path: Path) -> AbstractContextManager[OpenRecording]:
        by_library.append(path)
        return opened(path)

    examiner = EpisodeExaminer(noted)
    found = [examiner.examine(part, [index])[0] for index, part in enumerate(parts)]
    assert by_library == parts[:1]
    assert found == [by_the_library(part, index) for index, part in enumerate(parts)]
    assert isinstance(found[1], dict)
    assert {type(value) for value in found[1].values()} == {str, int, bool}


def test_episodes_of_another_structure_are_read_too(tmp_path):
    examiner = EpisodeExaminer()
    more: list[dict[str, Any]] = [{}, {"more": 1.5}, {}, {"text": "é\n"}]
    for index, changes in enumerate(more):
        path = tmp_path / episode_file_name(index)
        hdf5.write_episode(path, recorded(index, **changes))
        assert examiner.examine(path, [index]) == [by_the_library(path, index)]


def test_compressed_episodes_are_read_by_the_library(tmp_path):
    examiner = EpisodeExaminer()
    for index in range(3):
        path = tmp_path / episode_file_name(index)
        hdf5.write_episode(path, recorded(index), Compression.GZIP)
        assert examiner.examine(path, [index]) == [by_the_library(path, index)]


def test_a_dataset_is_read_back_whoever_reads_it(tmp_path):
    consolidate(write_parts(tmp_path, range(12)), tmp_path / "dataset.hdf5")
    examined = EpisodeExaminer().examine(tmp_path / "dataset.hdf5", list(range(12)))
    assert examined == [by_the_library(tmp_path / "dataset.hdf5", index) for index in range(12)]


@pytest.mark.parametrize("name", ["dataset.hdf5", episode_file_name(1)])
def test_no_changed_byte_passes_that_the_library_would_refuse(tmp_path, name):
    first, second = write_parts(tmp_path, [0, 1])
    if name == "dataset.hdf5":
        consolidate([first, second], tmp_path / name)
        write_parts(tmp_path, [0])
    path, draw = tmp_path / name, random.Random(SEED)
    content = path.read_bytes()
    for _ in range(80):
        changed = bytearray(content)
        at = draw.randrange(96, len(changed))
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        examiner = EpisodeExaminer()
        examiner.examine(first, [0])
        found = answer(lambda examiner=examiner: examiner.examine(path, [1])[0])
        expected = answer(lambda: by_the_library(path, 1))
        assert found == expected, f"seed {SEED}: byte {at} is changed, and {found} is read"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files in memory")
def test_a_damaged_file_is_released_without_garbage_collection(tmp_path):
    [path] = write_parts(tmp_path, [0])
    content, actions = path.read_bytes(), recorded(0, length=3).arrays["actions"].tobytes()
    path.write_bytes(content.replace(actions, bytes(len(actions))))
    with without_collecting():
        [found] = EpisodeExaminer().examine(path, [0])
        assert isinstance(found, DamagedFileError)
        del found
        assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_dataset_that_grows_is_the_same_as_one_that_was_made_at_once(tmp_path):
    consolidate(write_parts(tmp_path, [0, 2]), tmp_path / "grown.hdf5")
    consolidate(write_parts(tmp_path, [1, 3]), tmp_path / "grown.hdf5")
    consolidate(write_parts(tmp_path, range(4)), tmp_path / "at once.hdf5")
    assert (tmp_path / "grown.hdf5").read_bytes() == (tmp_path / "at once.hdf5").read_bytes()


def test_a_dataset_that_was_compressed_grows_by_the_library(tmp_path):
    paths = [tmp_path / episode_file_name(index) for index in range(3)]
    hdf5.write_episode(paths[0], recorded(0), Compression.GZIP)
    consolidate(paths[:1], tmp_path / "dataset.hdf5")
    for index in (1, 2):
        hdf5.write_episode(paths[index], recorded(index))
    assert consolidate(paths[1:], tmp_path / "dataset.hdf5").episode_indices == (0, 1, 2)
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", range(3))
