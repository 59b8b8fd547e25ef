from datetime import UTC, datetime

from isaaclab_arena.dated_folders import make_dated_folder

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_folders_of_the_same_second_are_numbered(tmp_path):
    folders = [make_dated_folder(tmp_path, suffix=suffix, now=NOON) for suffix in ("", "", "", "_fast", "_fast")]
    assert [folder.name.removeprefix("2026-11-21_12-00-00") for folder in folders] == [
        *("", "_2", "_3"),
        *("_fast", "_fast_2"),
    ]
    assert all(folder.is_dir() for folder in folders)
