"""Files that are written whole or not at all."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.errors import DiskUnusableError, StorageError
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import (
    append_line,
    json_line,
    json_text,
    storage_error,
    temporary_path,
    write_at,
    write_bytes,
    write_text,
    written_in_place,
)
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import verify_episodes
from tests.security.test_names import WICKED, steers
from tests.storage.recordings import write_parts


def test_a_file_is_there_whole_or_not_at_all_and_is_written_over_only_on_demand(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(ZeroDivisionError), written_in_place(path) as temporary:
        temporary.write_text(f"half {1 // 0}")
    assert list(tmp_path.iterdir()) == []
    write_text(path, "first")
    with pytest.raises(StorageError, match=str(path)):
        write_text(path, "second")
    assert path.read_text() == "first"
    write_text(path, "third", overwrite=True)
    assert path.read_text() == "third"
    with pytest.raises(StorageError, match=str(path)):
        write_text(path / "below.txt", "x")
    for offset, content in ((0, b"one "), (4, b"two"), (0, b"one "), (4, b"two")):
        write_at(tmp_path / "parts" / "a.txt", offset, content)
    assert (tmp_path / "parts" / "a.txt").read_bytes() == b"one two"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ENOENT])
def test_a_full_disk_a_used_up_quota_and_a_disk_that_became_read_only_are_unusable_and_no_other_trouble(number):
    error = storage_error("write", Path("a.h5"), OSError(number, os.strerror(number)))
    assert str(error).startswith(f"cannot write a.h5: {os.strerror(number)}")
    assert isinstance(error, DiskUnusableError) is (number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


@pytest.mark.parametrize("write", [write_text, lambda path, text: write_bytes(path, text.encode()), None])
def test_what_an_earlier_process_of_the_same_number_was_writing_is_no_part_of_the_file(tmp_path, write):
    path = tmp_path / "a.txt"
    temporary_path(path).write_text("much longer than what comes now")
    if write is None:
        with written_in_place(path) as temporary:
            temporary.write_text("now")
    else:
        write(path, "now")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "now"


@contextmanager
def limit_on_files(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size (``ulimit -f``), which stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_way_of_writing_takes_the_limit_for_a_full_disk_and_leaves_what_was_there(tmp_path):
    parts = write_parts(tmp_path, range(60))
    line = os.open(tmp_path / "line", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    refused: list[Callable[[], object]] = [
        lambda: write_bytes(tmp_path / "whole", bytes(20_001)),
        lambda: write_at(tmp_path / "part", 19_999, b"xxx"),
        lambda: [append_line(line, "x" * 9_997, tmp_path / "line") for _ in range(3)],
        lambda: write_parts(tmp_path, [200]),
        lambda: consolidate(parts, tmp_path / "dataset.hdf5"),
    ]
    with limit_on_files(20_000):
        said = []
        for write in refused:
            with pytest.raises(DiskUnusableError) as error:
                write()
            said.append(str(error.value))
        write_bytes(tmp_path / "fits", bytes(20_000))
    os.close(line)
    assert "only 1 of 3 bytes" in said[1]
    assert "only 4 of 9998 bytes" in said[2]
    names = [*map(layout.episode_file_name, range(60))]
    assert {path.name for path in tmp_path.iterdir()} == {"part", "line", "fits", *names}
    for index, name in enumerate(names):
        verify_episodes(tmp_path / name, [index])


def test_names_of_files_carry_the_rank_and_the_attempt_only_where_there_are_several():
    assert layout.dataset_file_name("lift", 0, 1) == "dataset_lift.hdf5"
    assert layout.dataset_file_name("lift", 2, 4) == "dataset_lift_rank2.hdf5"
    assert layout.traceback_file_name(1, attempt=1) == "traceback_rank1.txt"
    assert layout.traceback_file_name(1, attempt=2) == "traceback_rank1_attempt2.txt"
    assert all(layout.is_dataset_of("lift", name) for name in ("dataset_lift.hdf5", "dataset_lift_rank12.hdf5"))
    assert not any(layout.is_dataset_of("lift", name) for name in ("dataset_lift_backup.hdf5", "../dataset_lift.hdf5"))


def test_an_index_survives_its_names_and_other_names_have_none():
    for index in (0, 7, 123, 1_234_567):
        assert layout.episode_index_of_file(layout.episode_file_name(index)) == index
        assert layout.demo_index(layout.demo_name(index)) == index
    for name in ("e12.txt", "demo_", "demo_1x", "xdemo_1", ".e000001.h5.host.1.tmp"):
        assert layout.episode_index_of_file(name) is layout.demo_index(name) is None


NESTED = {
    "name": 'a "quoted", line\nand another, [of] {brackets}',
    "empty": {"list": [], "dict": {}},
    "jobs": [{"a": 1, "b": None, "c": 0.1}, {"a": [1, [2.5e-7, True]], "ö": {}}],
    "numbers": [1, 2, 3],
    "": [[], [[]]],
}


@pytest.mark.parametrize("value", [NESTED, [], {}, [NESTED, []], 3, "text", None])
def test_json_of_plain_values_is_what_pythons_own_encoder_writes(value):
    assert json_text(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    assert json_line(value) == json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


@pytest.mark.parametrize("write", [json_line, json_text])
def test_what_json_does_not_know_becomes_what_it_does(write):
    value = Pair(left=(np.float32(0.5), float("nan"), {1: np.arange(2)}), right=Pair(left="x", right=float("inf")))
    assert json.loads(write(value)) == {"left": [0.5, None, {"1": [0, 1]}], "right": {"left": "x", "right": None}}


@pytest.mark.parametrize("text", WICKED)
def test_json_says_the_same_and_steers_nothing(text):
    for written in (json_line({text: [text]}), json_text({text: [text]}).rstrip("\n")):
        assert not steers(written)
        if not text.endswith("\udcff"):
            assert json.loads(written) == {text: [text]}
        assert json.loads(written.encode())
