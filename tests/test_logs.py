import logging
from pathlib import Path

import pytest

from isaaclab_arena.logs import log_file, plain_text, set_up_console_logging
from tests.security.test_names import WICKED, steers

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


@pytest.mark.parametrize("text", WICKED)
def test_plain_text_steers_nothing_and_can_be_encoded(text):
    assert not steers(plain_text(text))
    assert plain_text(text).encode()
    assert "\n" not in plain_text(f"{text}\nb\tc")
    assert plain_text("b\n\tc", keep_lines=True) == "b\n\tc"


@pytest.mark.parametrize(
    "text",
    ["lift cube", "W\u00fcrfel", "\u5b57", "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "\U0001f468\u200d\U0001f469"],
)
def test_plain_text_leaves_every_script_as_it_is(text):
    assert plain_text(text) == text


def test_log_lines_are_plain_on_the_screen_and_in_the_file(tmp_path, capfd):
    set_up_console_logging(0)
    with log_file(tmp_path / "rank0.log", 0):
        for text in WICKED:
            logging.getLogger("isaaclab_arena.test").warning("job '%s'", text)
    shown = capfd.readouterr().err
    written = (tmp_path / "rank0.log").read_text(encoding="utf-8")
    assert shown.count("job '") == written.count("job '") == len(WICKED)
    assert not steers(shown + written)
    assert "Logging error" not in shown
