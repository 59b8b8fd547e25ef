import os
from pathlib import Path

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import append_line, create_for_appending, write_at, write_text, written_in_place


def test_a_file_that_exists_is_not_written_over(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first")
    with pytest.raises(StorageError, match="exists already"):
        write_text(path, "second")
    assert path.read_text() == "first"
    write_text(path, "third", overwrite=True)
    assert path.read_text() == "third"


def test_a_failed_write_leaves_neither_file_nor_temporary(tmp_path):
    with pytest.raises(ZeroDivisionError), written_in_place(tmp_path / "a.txt") as temporary:
        temporary.write_text(f"half {1 // 0}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_parts_is_whole_however_often_they_come(tmp_path):
    path = tmp_path / "folder" / "a.txt"
    for offset, content in ((0, b"one "), (4, b"two"), (0, b"one "), (4, b"two")):
        write_at(path, offset, content)
    assert path.read_bytes() == b"one two"


def test_a_full_disk_is_named():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(StorageError, match=r"cannot append to commits\.jsonl: No space left on device"):
        append_line(descriptor, "{}", Path("commits.jsonl"))
    os.close(descriptor)


def test_a_path_below_a_file_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_two_writers_never_share_an_appending_file(tmp_path):
    os.close(create_for_appending(tmp_path / "rows"))
    with pytest.raises(FileExistsError):
        create_for_appending(tmp_path / "rows")
