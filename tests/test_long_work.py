"""What is said while something long goes on."""

import logging

import pytest

from isaaclab_arena.logs import LongWork, ended_in, heard_by, told, within


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
