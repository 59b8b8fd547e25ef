import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.config import SETTINGS, new_run_directory, newest_run


def test_a_run_can_be_given_a_name(tmp_path):
    directory = new_run_directory(tmp_path, "reach", "fast")
    assert directory.parent == tmp_path / "reach"
    assert directory.name.endswith("_fast")


def test_the_newest_run_is_the_one_that_began_last(tmp_path):
    for stamp in ("2026-11-20_10-00-00", "2026-11-21_09-00-00"):
        settings = tmp_path / "reach" / stamp / SETTINGS
        settings.parent.mkdir(parents=True)
        settings.touch()
        (tmp_path / "reach" / stamp / "model_0.pt").touch()
    # One that failed before its first checkpoint.
    failed = tmp_path / "reach" / "2026-11-22_00-00-00" / SETTINGS
    failed.parent.mkdir(parents=True)
    failed.touch()
    assert newest_run(tmp_path, "reach").name == "2026-11-21_09-00-00"


def test_there_has_to_be_a_run_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume: there is no run in .*reach to go on with"):
        newest_run(tmp_path, "reach")
