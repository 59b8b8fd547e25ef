from datetime import UTC, datetime

from isaaclab_arena.paths import make_dated_directory

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_directories_of_the_same_second_are_numbered(tmp_path):
    directories = [make_dated_directory(tmp_path, suffix=suffix, now=NOON) for suffix in ("", "", "", "_fast", "_fast")]
    assert [directory.name.removeprefix("2026-11-21_12-00-00") for directory in directories] == [
        *("", "_2", "_3"),
        *("_fast", "_fast_2"),
    ]
    assert all(directory.is_dir() for directory in directories)
