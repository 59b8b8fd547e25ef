from pathlib import Path

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.recovery import remove_if_empty


def test_an_empty_directory_is_removed_and_another_is_not(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "episode").touch()
    remove_if_empty(empty)
    remove_if_empty(full)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_directory_that_another_rank_removes_at_the_same_moment_is_no_failure(tmp_path, monkeypatch):
    directory = tmp_path / "episodes"
    directory.mkdir()
    rmdir = Path.rmdir

    def beaten_to_it(path: Path) -> None:
        rmdir(path)
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", beaten_to_it)
    remove_if_empty(directory)
    assert not directory.exists()


def test_what_is_no_directory_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot remove"):
        remove_if_empty(tmp_path / "file")
