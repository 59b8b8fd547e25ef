import logging
from pathlib import Path

import pytest

from isaaclab_arena.logs import log_file, set_up_console_logging

LOGGER = logging.getLogger("isaaclab_arena.test")


def test_a_log_file_gets_the_lines_of_its_block_and_no_others(tmp_path):
    path = tmp_path / "logs" / "rank0.log"
    LOGGER.warning("before")
    with log_file(path, 0):
        LOGGER.warning("within")
    LOGGER.warning("after")
    with log_file(path, 0):
        LOGGER.warning("once more")
    assert [line.rpartition(" WARNING ")[2] for line in path.read_text().splitlines()] == ["within", "once more"]


def test_the_error_that_ends_the_block_is_in_the_file(tmp_path):
    set_up_console_logging(0)
    path = tmp_path / "rank0.log"
    with pytest.raises(ValueError, match="too long"), log_file(path, 0):
        raise ValueError("too long")
    assert "ValueError: too long" in path.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_is_told_once_and_ends_nothing(capsys):
    with log_file(Path("/dev/full"), 0):
        LOGGER.warning("lost")
        LOGGER.warning("lost too")
    assert capsys.readouterr().err.count("cannot write /dev/full: No space left on device") == 1
