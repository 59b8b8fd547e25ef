"""Ranks that claim their work, started by hand: unlike torchrun nobody ends the others when one of them dies."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.launching import committed, job, launched, ranks_of, same_tables, wait_until

JOBS = [job("lift_object", num_episodes=40, name="long"), job("reach", "random_action", 10, name="short")]
EVERY_EPISODE = Counter((name, index) for name, number in (("long", 40), ("short", 10)) for index in range(number))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return launched(tmp_path_factory.mktemp("undisturbed") / "out", *JOBS)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "options"), [(1, ()), (0, ("--split_jobs",))])
def test_what_a_killed_rank_left_is_finished_by_the_other(tmp_path, undisturbed, victim, options):
    output = tmp_path / "out"
    with ranks_of(output, *JOBS, options=options) as processes:
        wait_until(lambda: committed(output, rank=victim).total() >= 3)
        os.kill(processes[victim].pid, signal.SIGKILL)
        assert processes[1 - victim].wait(timeout=120) == 0, (tmp_path / f"rank{1 - victim}.log").read_text()
    assert committed(output) == EVERY_EPISODE
    assert committed(output, rank=1 - victim).total() < EVERY_EPISODE.total()
    assert same_tables(output, undisturbed)


@pytest.mark.slow
def test_a_stopped_rank_loses_its_work_and_does_no_harm_when_it_goes_on(tmp_path, undisturbed):
    output = tmp_path / "out"
    with ranks_of(output, *JOBS, options=("--lease_s", 1)) as processes:
        wait_until(lambda: committed(output, rank=1).total() >= 3)
        stopped = json.loads((output / "logs" / "rank1.status.json").read_text())["pid"]
        os.kill(stopped, signal.SIGSTOP)
        before = committed(output, rank=1).total()
        assert processes[0].wait(timeout=120) == 0, (tmp_path / "rank0.log").read_text()
        assert same_tables(output, undisturbed)
        os.kill(stopped, signal.SIGCONT)
        assert processes[1].wait(timeout=60) == 0, (tmp_path / "rank1.log").read_text()
    assert set(committed(output)) == set(EVERY_EPISODE)
    assert committed(output, rank=1).total() - before <= 2, "only the episodes that it was in the middle of"
    assert same_tables(output, undisturbed)


def test_ranks_that_are_left_alone_share_the_work(tmp_path, undisturbed):
    output = tmp_path / "out"
    with ranks_of(output, *JOBS, ranks=3) as processes:
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert committed(output) == EVERY_EPISODE
    assert all(committed(output, rank=rank) for rank in range(3))
    assert same_tables(output, undisturbed)
