"""Logs, clocks and long work."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from isaaclab_arena.errors import did_you_mean
from isaaclab_arena.logs import LongWork, ended_in, heard_by, log_file, plain_text, set_up_console_logging, told, within
from isaaclab_arena.paths import now
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


@pytest.mark.parametrize("local", [False, True])
def test_now_is_a_time_with_its_zone(local):
    before = datetime.now(UTC)
    told = datetime.fromisoformat(now(local=local))
    assert told.tzinfo is not None
    assert (told - before).total_seconds() < 60
    assert now().endswith("+00:00")


# What is said while something long goes on.


def lines_of(num_items: int, *, seconds_each: float) -> list[str]:
    said: list[str] = []
    clock = [0.0]
    for _ in told(
        range(num_items), "checking", "job '{lift}'", interval_s=2.0, now_s=lambda: clock[0], say=said.append
    ):
        clock[0] += seconds_each
    return said


def test_how_far_it_has_come_is_said_now_and_then():
    assert lines_of(6_000, seconds_each=1 / 1024) == [
        "checking job '{lift}': 2,048 of 6,000 episodes",
        "checking job '{lift}': 4,096 of 6,000 episodes",
    ]


def test_nothing_is_said_of_what_is_over_soon():
    assert lines_of(1000, seconds_each=0.001) == []
    assert lines_of(0, seconds_each=1) == []


def test_who_listens_hears_how_far_it_has_come_and_when_it_is_over():
    heard: list[LongWork | None] = []
    with heard_by(heard.append):
        for number in told(range(3), "consolidating", "dataset_lift.hdf5"):
            assert heard[-1] == LongWork("consolidating", number, 3)
        assert heard[-1] == LongWork("consolidating", 3, 3)
    assert heard[-1] is None
    list(told(range(3), "consolidating", "dataset_lift.hdf5"))
    assert len(heard) == 5


def test_work_that_fails_is_over_for_who_listens():
    heard: list[LongWork | None] = []
    with pytest.raises(ZeroDivisionError), heard_by(heard.append):
        sum(1 / number for number in told(range(3), "consolidating", "dataset_lift.hdf5"))
    assert heard == [LongWork("consolidating", 0, 3), None]


def test_lines_are_for_people_only_where_nobody_listens(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("isaaclab_arena"), "propagate", True)
    caplog.set_level(logging.DEBUG, logger="isaaclab_arena")
    list(told(range(2), "checking", "job 'lift'", interval_s=0.0))
    with heard_by(lambda _: None):
        list(told(range(2), "consolidating", "dataset_lift.hdf5", interval_s=0.0))
    levels = {record.getMessage().split()[0]: record.levelno for record in caplog.records}
    assert levels == {"checking": logging.INFO, "consolidating": logging.DEBUG}


@pytest.mark.parametrize(("left_s", "limit_s"), [(1000.0, 300.0), (100.0, 85.0), (20.0, 10.0), (0.0, 0.0), (-3.0, 0.0)])
def test_nobody_waits_until_the_process_is_ended(left_s, limit_s):
    with ended_in(lambda: left_s):
        assert within(300.0, margin_s=15.0) == limit_s
    assert within(300.0, margin_s=15.0) == 300.0


# Tests of the words that a mistake is told in.


def test_of_many_choices_a_hundred_are_named():
    assert did_you_mean("zzz", [f"choice{number:03}" for number in range(102)]).endswith("choice099, and 2 more")
    assert did_you_mean("zzz", [f"choice{number:03}" for number in range(100)]).endswith("choice099")
