"""Files that are written whole or not at all."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.errors import DiskUnusableError, StorageError
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import (
    append_line,
    storage_error,
    temporary_path,
    write_at,
    write_bytes,
    write_text,
    written_in_place,
)
from isaaclab_arena.storage.episodes import list_episodes, verify_episodes
from isaaclab_arena.storage.json_values import json_line, json_text
from tests.security.test_names import WICKED, steers


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


# A disk that is full: every write says so, and what was there stays whole.


# A limit on the size of files stands for a full disk: it fails in the middle of a write, too.
SETUP = """
import pathlib, resource, sys
import numpy as np
from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.episode_file import RecordedEpisode

directory = pathlib.Path(sys.argv[1])

def write(index):
    arrays = {"actions": np.full((3000, 8), index, np.float32)}
    episode = RecordedEpisode(episode_index=index, arrays=arrays, attributes={}, env_args={})
    write_episode(directory / episode_file_name(index), episode)

def limit(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

def fails(action):
    try:
        action()
    except StorageError as error:
        print(error)
    else:
        raise SystemExit("nothing was raised")
"""
EPISODE = "write(0); limit(50_000); fails(lambda: write(1))"
LINE = """
lines = CommitWriter(directory, rank=0)
limit(10)
lines.write("12345")
fails(lambda: lines.write("67890"))
"""
DATASET = """
for index in range(3): write(index)
parts = sorted(directory.glob("e*.h5"))
limit(150_000)
fails(lambda: consolidate(parts, directory / "dataset.hdf5"))
"""


def run(script: str, directory) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script, str(directory)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_an_episode_that_does_not_fit_leaves_no_file(tmp_path):
    assert "cannot write" in run(EPISODE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["e000000.h5"]
    verify_episodes(tmp_path / "e000000.h5", [0])


def test_a_line_that_does_not_fit_is_an_error(tmp_path):
    assert "only 4 of 6 bytes fitted" in run(LINE, tmp_path)


def test_a_dataset_that_does_not_fit_leaves_the_episodes_where_they_are(tmp_path):
    assert "File too large" in run(DATASET, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"e00000{index}.h5" for index in range(3)]
    assert all(list_episodes(tmp_path / f"e00000{index}.h5") == [index] for index in range(3))


def test_dataset_names_carry_the_rank_only_where_there_are_several():
    assert layout.dataset_file_name("lift", 0, 1) == "dataset_lift.hdf5"
    assert layout.dataset_file_name("lift", 2, 4) == "dataset_lift_rank2.hdf5"


def test_a_jobs_datasets_are_known_by_their_names():
    assert layout.is_dataset_of("lift", "dataset_lift.hdf5")
    assert layout.is_dataset_of("lift", "dataset_lift_rank12.hdf5")
    assert not layout.is_dataset_of("lift", "dataset_lift_backup.hdf5")
    assert not layout.is_dataset_of("lift", "../dataset_lift.hdf5")


def test_the_traceback_of_a_later_attempt_has_another_name():
    assert layout.traceback_file_name(1, attempt=1) == "traceback_rank1.txt"
    assert layout.traceback_file_name(1, attempt=2) == "traceback_rank1_attempt2.txt"


@pytest.mark.parametrize("index", [0, 7, 123, 1_234_567])
def test_an_index_survives_its_names(index):
    assert layout.episode_index_of_file(layout.episode_file_name(index)) == index
    assert layout.demo_index(layout.demo_name(index)) == index


@pytest.mark.parametrize("name", ["e12.txt", "demo_", "demo_1x", "xdemo_1", ".e000001.h5.host.1.tmp"])
def test_other_names_have_no_index(name):
    assert layout.episode_index_of_file(name) is None
    assert layout.demo_index(name) is None


NESTED = {
    "name": 'a "quoted", line\nand another, [of] {brackets}',
    "empty": {"list": [], "dict": {}},
    "jobs": [{"a": 1, "b": None, "c": 0.1}, {"a": [1, [2.5e-7, True]], "ö": {}}],
    "numbers": [1, 2, 3],
    "": [[], [[]]],
}


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


@pytest.mark.parametrize("value", [NESTED, [], {}, [NESTED, []], 3, "text", None])
def test_indented_text_is_what_pythons_own_encoder_writes(value):
    assert json_text(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def test_what_json_does_not_know_becomes_what_it_does():
    value = Pair(left=(np.float32(0.5), float("nan"), {1: np.arange(2)}), right=Pair(left="x", right=float("inf")))
    expected = {"left": [0.5, None, {"1": [0, 1]}], "right": {"left": "x", "right": None}}
    assert json.loads(json_line(value)) == expected
    assert json.loads(json_text(value)) == expected


def test_a_line_of_plain_values_is_what_pythons_own_encoder_writes():
    assert json_line(NESTED) == json.dumps(NESTED, ensure_ascii=False)


@pytest.mark.parametrize("text", WICKED)
def test_json_says_the_same_and_steers_nothing(text):
    for written in (json_line({text: [text]}), json_text({text: [text]}).rstrip("\n")):
        assert not steers(written)
        if not text.endswith("\udcff"):
            assert json.loads(written) == {text: [text]}
        assert json.loads(written.encode())
