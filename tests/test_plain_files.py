"""What is no plain file is named for what it is, without being opened."""

import os
from pathlib import Path

import pytest

from isaaclab_arena.paths import not_a_plain_file


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_plain_file_is_one_also_through_a_link(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert not_a_plain_file(tmp_path / "file") is None
    assert not_a_plain_file(tmp_path / "link") is None


def test_everything_else_is_named_for_what_it_is(tmp_path, pipe):
    (tmp_path / "link").symlink_to(pipe)
    (tmp_path / "circle").symlink_to("circle")
    assert not_a_plain_file(pipe) == "is a pipe, not a file; save what comes through it as a file"
    assert not_a_plain_file(tmp_path / "link") == not_a_plain_file(pipe)
    assert not_a_plain_file(tmp_path) == "is a directory, not a file"
    assert not_a_plain_file(Path("/dev/zero")) == "is a device, not a file"
    assert not_a_plain_file(tmp_path / "none") == "there is no such file"
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "circle"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "nul\0"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / ("long" * 2000)))
