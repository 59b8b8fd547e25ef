import errno
import os
from pathlib import Path

import pytest

from isaaclab_arena.errors import DiskUnusableError, StorageError
from isaaclab_arena.storage.disk import (
    append_line,
    storage_error,
    temporary_path,
    write_at,
    write_bytes,
    write_text,
    written_in_place,
)


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
    path = tmp_path / "directory" / "a.txt"
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_a_used_up_quota_and_a_disk_that_became_read_only_are_unusable(number):
    error = storage_error("write", Path("a.h5"), OSError(number, os.strerror(number)))
    assert isinstance(error, DiskUnusableError)
    assert str(error) == f"cannot write a.h5: {os.strerror(number)}"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOENT, errno.EISDIR])
def test_other_troubles_say_nothing_of_the_whole_disk(number):
    assert not isinstance(storage_error("write", Path("a.h5"), OSError(number, "")), DiskUnusableError)


def test_a_line_of_which_only_a_part_was_written_is_an_error():
    # A pipe that nobody reads takes a part of a long line, as a disk with little room does.
    reading, writing = os.pipe2(os.O_NONBLOCK)
    try:
        with pytest.raises(DiskUnusableError, match=r"cannot append to lines: only \d+ of 1000001 bytes fitted"):
            append_line(writing, "x" * 1_000_000, Path("lines"))
    finally:
        os.close(reading)
        os.close(writing)


def test_a_part_of_a_file_that_was_not_written_whole_is_an_error(tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: write(descriptor, content[:-1], offset))
    with pytest.raises(DiskUnusableError, match="only 2 of 3 bytes fitted"):
        write_at(tmp_path / "a.txt", 0, b"abc")


@pytest.mark.parametrize("write", [write_text, lambda path, text: write_bytes(path, text.encode())])
def test_what_an_earlier_process_of_the_same_number_was_writing_is_no_part_of_the_file(tmp_path, write):
    path = tmp_path / "a.txt"
    temporary_path(path).write_text("much longer than what comes now")
    write(path, "now")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "now"


def test_a_file_is_begun_anew_where_an_earlier_process_left_the_beginning_of_one(tmp_path):
    path = tmp_path / "a.txt"
    temporary_path(path).write_text("old")
    with written_in_place(path) as temporary:
        assert not temporary.exists()
        temporary.write_text("new")
    assert path.read_text() == "new"
