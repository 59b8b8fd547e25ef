import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.disk import temporary_path
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.recovery import Diagnosis, RecordedCopy, repair_job
from tests.security.test_recordings import LEADS, recording
from tests.storage.recordings import recorded, write_parts


def test_the_layout_is_robomimics(tmp_path):
    consolidate(write_parts(tmp_path, [0, 2]), tmp_path / "dataset.hdf5")
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        data: Any = file["data"]
        assert sorted(data) == ["demo_0", "demo_2"]
        assert data.attrs["total"] == 3 + 5
        assert data.attrs["env_args"] == '{"env_name": "lift", "type": 2}'
        assert data["demo_2"].attrs["num_samples"] == 5
        assert data["demo_2"].attrs["success"]
        assert data["demo_2/states/articulation/robot/joint_position"].shape == (5, 7)


def test_episodes_are_listed_by_number_and_the_parts_are_gone(tmp_path):
    parts = write_parts(tmp_path, [10, 9, 2, 0])
    done = consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 2, 9, 10)
    assert hdf5.list_episodes(tmp_path / "dataset.hdf5") == [0, 2, 9, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.hdf5"]


def test_very_many_parts_are_gone_too_and_one_that_cannot_be_removed_is_named(tmp_path):
    parts = write_parts(tmp_path / "episodes", range(120))
    consolidate(parts[:110], tmp_path / "dataset.hdf5")
    assert sorted((tmp_path / "episodes").iterdir()) == sorted(parts[110:])
    again = write_parts(tmp_path / "episodes", range(110))
    (tmp_path / "dataset.hdf5").unlink()
    with os_refuses_to_remove(again[77]), pytest.raises(StorageError, match=r"cannot remove .*e000077\.h5"):
        consolidate(again, tmp_path / "dataset.hdf5")
    assert hdf5.list_episodes(tmp_path / "dataset.hdf5") == list(range(110))
    consolidate([again[77]], tmp_path / "dataset.hdf5")
    assert sorted((tmp_path / "episodes").iterdir()) == sorted(parts[110:])


def test_a_part_that_cannot_be_removed_makes_no_loss_of_those_that_were_removed_before(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2])
    with os_refuses_to_remove(parts[1]), pytest.raises(StorageError, match=r"cannot remove .*e000001\.h5"):
        consolidate(parts, tmp_path / "dataset.hdf5")
    assert consolidate(parts, tmp_path / "dataset.hdf5").loss is None
    assert sorted(tmp_path.iterdir()) == [tmp_path / "dataset.hdf5"]


def test_parts_that_vanish_are_told_as_a_loss_and_the_others_are_kept(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2])
    parts[1].unlink()
    done = consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 2)
    what = f"recordings of an episode are damaged or gone since they finished ({parts[1]} is gone)"
    assert done.loss == f"{what}; --resume runs them again"


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


def test_a_damaged_part_stays_and_the_others_are_kept(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2])
    with h5py.File(parts[1], "r+") as file:
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] += 1
    parts[2].write_bytes(b"")
    done = consolidate(parts, tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0,)
    assert [path for path, _ in done.damaged] == parts[1:]
    assert "not what was written" in done.damaged[0][1]
    assert parts[1].exists()
    assert parts[2].exists()


def test_consolidating_again_after_a_crash_ends_in_the_same_file(tmp_path):
    consolidate(write_parts(tmp_path, [0, 1]), tmp_path / "dataset.hdf5")
    done = consolidate(write_parts(tmp_path, [1, 2]), tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 1, 2)
    for index in (0, 1, 2):
        hdf5.verify_episodes(tmp_path / "dataset.hdf5", [index])


def test_two_different_recordings_of_one_episode_are_refused(tmp_path):
    consolidate(write_parts(tmp_path, [0]), tmp_path / "dataset.hdf5")
    other = tmp_path / episode_file_name(0)
    hdf5.write_episode(other, recorded(0, length=9))
    with pytest.raises(StorageError, match="both hold demo_0"):
        consolidate([other], tmp_path / "dataset.hdf5")
    assert other.exists()
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0])


def test_a_file_of_another_name_is_left_alone(tmp_path):
    stranger = tmp_path / "notes.h5"
    hdf5.write_episode(stranger, recorded(0))
    done = consolidate([stranger], tmp_path / "dataset.hdf5")
    assert done.damaged[0][0] == stranger
    assert stranger.exists()


def test_parts_that_another_process_has_brought_in_already_are_no_damage(tmp_path):
    parts = write_parts(tmp_path, [0, 1])
    consolidate(parts, tmp_path / "dataset.hdf5")
    done = consolidate([*parts, *write_parts(tmp_path, [2])], tmp_path / "dataset.hdf5")
    assert done.episode_indices == (0, 1, 2)
    assert done.damaged == ()


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
    repair_job(tmp_path, "lift", Diagnosis(discarded=[(dropped, None)]), seed=0)
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
