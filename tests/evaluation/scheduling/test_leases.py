import dataclasses
import os

import pytest

from isaaclab_arena.distributed.process import process_start_ticks
from isaaclab_arena.distributed.rank_status import RankState, RankStatus, write_rank_status
from isaaclab_arena.distributed.rendezvous import RankWatch
from isaaclab_arena.evaluation.scheduling.leases import Leases


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def beat(directory, number: int, **changes) -> None:
    status = RankStatus.of_this_process(rank=1, run_id="run")
    write_rank_status(directory, dataclasses.replace(status, state=RankState.RUNNING, beat=number, **changes))


def leases_of(directory, clock) -> Leases:
    return Leases(RankWatch(directory, world_size=2, run_id="run", clock=clock), lease_s=30.0, clock=clock)


def look_each_second(leases: Leases, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        leases.look()


def test_a_rank_that_beats_keeps_its_claims(directory):
    clock = Clock()
    leases = leases_of(directory, clock)
    for number in range(100):
        beat(directory, number)
        look_each_second(leases, clock, 1)
        assert not leases.has_lapsed(1)


def test_a_rank_that_is_silent_for_a_lease_loses_its_claims_until_it_beats_again(directory):
    clock = Clock()
    leases = leases_of(directory, clock)
    beat(directory, 1)
    leases.look()
    look_each_second(leases, clock, 29)
    assert not leases.has_lapsed(1), "its process is there"
    look_each_second(leases, clock, 1)
    assert leases.has_lapsed(1)
    beat(directory, 2)
    look_each_second(leases, clock, 1)
    assert not leases.has_lapsed(1)


def test_a_watcher_that_was_stopped_itself_gives_the_others_a_whole_lease(directory):
    clock = Clock()
    leases = leases_of(directory, clock)
    beat(directory, 1)
    leases.look()
    clock.now_s = 600.0
    leases.look()
    assert not leases.has_lapsed(1)
    look_each_second(leases, clock, 29)
    assert not leases.has_lapsed(1)
    look_each_second(leases, clock, 1)
    assert leases.has_lapsed(1)


@pytest.mark.parametrize("state", [RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED])
def test_a_rank_that_works_no_more_loses_its_claims_at_once(directory, state):
    leases = leases_of(directory, Clock())
    write_rank_status(
        directory, dataclasses.replace(RankStatus.of_this_process(rank=1, run_id="run"), state=state, beat=1)
    )
    leases.look()
    assert leases.has_lapsed(1)


def test_a_rank_whose_process_is_gone_loses_its_claims_at_once(directory):
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    beat(directory, 1, start_ticks=ticks - 1)
    leases = leases_of(directory, Clock())
    leases.look()
    assert leases.has_lapsed(1)
