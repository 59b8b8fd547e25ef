"""Logs, clocks and long work."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from isaaclab_arena.errors import did_you_mean
from isaaclab_arena.logs import LongWork, ended_in, heard_by, log_file, plain_text, set_up_console_logging, told, within
from isaaclab_arena.paths import now
from tests.fakes import Clock
from tests.security.test_names import WICKED, steers

LOGGER = logging.getLogger("isaaclab_arena.test")


def test_a_log_file_gets_the_lines_of_its_block_and_the_error_that_ends_it(tmp_path):
    set_up_console_logging(0)
    path = tmp_path / "logs" / "rank0.log"
    LOGGER.warning("before")
    with log_file(path, 0):
        LOGGER.warning("within")
    LOGGER.warning("after")
    with pytest.raises(ValueError, match="too long"), log_file(path, 0):
        raise ValueError("too long")
    text = path.read_text()
    assert text.partition("\n")[0].endswith(" WARNING within")
    assert "after" not in text
    assert "ValueError: too long" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_is_told_once_and_ends_nothing(capsys):
    with log_file(Path("/dev/full"), 0):
        LOGGER.warning("lost")
        LOGGER.warning("lost too")
    assert capsys.readouterr().err.count("/dev/full: ") == 1


ARABIC, FAMILY = "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "\U0001f468\u200d\U0001f469"


@pytest.mark.parametrize("text", ["lift cube", "W\u00fcrfel", "\u5b57", ARABIC, FAMILY])
def test_plain_text_leaves_every_script_as_it_is(text):
    assert plain_text(text) == text


def test_log_lines_are_plain_on_the_screen_and_in_the_file(tmp_path, capfd):
    set_up_console_logging(0)
    with log_file(tmp_path / "rank0.log", 0):
        for text in WICKED:
            LOGGER.warning("job '%s'", text)
    shown = capfd.readouterr().err
    written = (tmp_path / "rank0.log").read_text(encoding="utf-8")
    assert shown.count("job '") == written.count("job '") == len(WICKED)
    assert not steers(shown + written)
    assert "Logging error" not in shown
    assert "\n" not in plain_text("a\nb\tc")
    assert plain_text("b\n\tc", keep_lines=True) == "b\n\tc"


@pytest.mark.parametrize("local", [False, True])
def test_now_is_a_time_with_its_zone(local):
    told = datetime.fromisoformat(now(local=local))
    assert told.tzinfo is not None
    assert abs((told - datetime.now(UTC)).total_seconds()) < 60
    assert now().endswith("+00:00")


# What is said while something long goes on.


@pytest.mark.parametrize(
    ("num_items", "seconds_each", "said"),
    [(6_000, 1 / 1024, ["2,048 of 6,000 episodes", "4,096 of 6,000 episodes"]), (1000, 0.001, []), (0, 1, [])],
)
def test_how_far_it_has_come_is_said_now_and_then(num_items, seconds_each, said):
    heard: list[str] = []
    clock = Clock()
    for _ in told(range(num_items), "checking", "job '{lift}'", interval_s=2.0, now_s=clock, say=heard.append):
        clock.now_s += seconds_each
    assert heard == [f"checking job '{{lift}}': {each}" for each in said]


def test_who_listens_hears_how_far_it_has_come_and_when_it_is_over_or_fails():
    heard: list[LongWork | None] = []
    with heard_by(heard.append):
        list(told(range(2), "consolidating", "dataset_lift.hdf5"))
        with pytest.raises(ZeroDivisionError):
            sum(1 / number for number in told(range(2), "checking", "dataset_lift.hdf5"))
    list(told(range(2), "consolidating", "dataset_lift.hdf5"))
    whole = [LongWork("consolidating", number, 2) for number in range(3)]
    assert heard == [*whole, LongWork("checking", 0, 2), None]


def test_lines_are_for_people_only_where_nobody_listens(caplog):
    caplog.set_level(logging.DEBUG, logger="isaaclab_arena")
    list(told(range(2), "checking", "job 'lift'", interval_s=0.0))
    with heard_by(lambda _: None):
        list(told(range(2), "consolidating", "dataset_lift.hdf5", interval_s=0.0))
    levels = {record.getMessage().split()[0]: record.levelno for record in caplog.records}
    assert levels == {"checking": logging.INFO, "consolidating": logging.DEBUG}


@pytest.mark.parametrize(("left_s", "limit_s"), [(1000.0, 300.0), (100.0, 85.0), (20.0, 10.0), (-3.0, 0.0)])
def test_nobody_waits_until_the_process_is_ended(left_s, limit_s):
    with ended_in(lambda: left_s):
        assert within(300.0, margin_s=15.0) == limit_s
    assert within(300.0, margin_s=15.0) == 300.0


@pytest.mark.parametrize(("count", "end"), [(102, "choice099, and 2 more"), (100, "choice099")])
def test_of_many_choices_a_hundred_are_named(count, end):
    assert did_you_mean("zzz", [f"choice{number:03}" for number in range(count)]).endswith(end)


# Tests of the words that a mistake is told in.
