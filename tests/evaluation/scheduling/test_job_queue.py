"""The order of jobs and the size of their pieces."""

from dataclasses import replace

import pytest

from isaaclab_arena.config.schema import Question
from isaaclab_arena.evaluation.claims import Measured, Measurements, OpenWork, choose, expected_s, order_of_work
from isaaclab_arena.evaluation.options import ASSIGNMENTS, ROUND_ROBIN, SPLIT
from isaaclab_arena.evaluation.planning import pieces_of, split_shares
from isaaclab_arena.evaluation.queues import FixedQueue, jobs_of_rank
from isaaclab_arena.interfaces.episode import count_episodes
from isaaclab_arena.storage.ledger import JobState
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

JOBS = tuple(coin_job(f"job{index}", index=index, num_episodes=10) for index in range(5))
ALL = tuple(JobState(job=job.config.name) for job in JOBS)


def taken(tasks):
    return {each.job.config.name: list(each.take(range(10))) for each in tasks}


def of_rank(rank, work=ALL, *, world_size=2, assignment=ROUND_ROBIN, jobs=JOBS):
    start = attempt(2, world_size=world_size, jobs=work)
    return jobs_of_rank(jobs, start, assignment, rank=rank)


def test_round_robin_goes_by_the_index_in_the_file_and_hands_out_what_is_not_finished():
    left = (ALL[1], JobState(job="job2", finished=((0, 3), (5, 9))), ALL[4])
    first = of_rank(0, left)
    assert taken(first) == {"job2": [3, 4, 9], "job4": list(range(10))}
    assert [each.num_episodes for each in first] == [3, 10]
    assert list(taken(of_rank(1, left))) == ["job1"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("assignment", [each for each in ASSIGNMENTS.values() if not each.claims])
def test_what_is_settled_before_the_start_gives_every_unfinished_episode_to_one_rank(assignment, world_size):
    left = (JobState(job="job0", finished=((2, 4),)), *ALL[1:])
    everything = [
        taken(of_rank(rank, left, world_size=world_size, assignment=assignment)) for rank in range(world_size)
    ]
    for work in left:
        given = sorted(index for shares in everything for index in shares.get(work.job, []))
        assert given == [index for index in range(10) if work.job != "job0" or index not in (2, 3)]


def test_a_job_of_unknown_length_or_that_owes_only_its_report_is_not_split_and_one_not_to_run_is_left_out():
    unknown = replace(JOBS[0], config=replace(JOBS[0].config, num_episodes=None))
    shares = [of_rank(rank, ALL[:1], world_size=3, assignment=SPLIT, jobs=(unknown,)) for rank in range(3)]
    assert [[each.num_episodes for each in share] for share in shares] == [[0], [], []]
    work = (JobState(job="job1", finished=((0, 10),)),)
    assert [len(of_rank(rank, work, assignment=SPLIT)) for rank in range(2)] == [0, 1]
    skipped = replace(JOBS[0], config=replace(JOBS[0].config, status="completed"))
    assert of_rank(0, ALL[:1], jobs=(skipped,)) == []


ASKED = (Question(name="q", jobs=("job3", "job1"), max_episodes=10),)


def turns_of(rank, work=ALL, *, assignment=ROUND_ROBIN, world_size=2):
    start = attempt(2, world_size=world_size, jobs=work)
    tasks = jobs_of_rank(JOBS, start, assignment, rank=rank, questions=ASKED)
    return [(each.job.config.name, list(each.take(range(10)))) for each in tasks]


def test_compared_jobs_take_turns_on_the_rank_of_the_first_of_them():
    assert [name for name, _ in turns_of(0)] == ["job0", "job2", "job4"]
    assert turns_of(1) == [
        ("job1", [0, 1, 2, 3]),
        ("job3", [0, 1, 2, 3]),
        ("job1", [4, 5, 6, 7]),
        ("job3", [4, 5, 6, 7]),
        ("job1", [8, 9]),
        ("job3", [8, 9]),
    ]


def test_a_compared_job_that_owes_only_its_report_gets_a_turn_without_episodes():
    work = (JobState(job="job1", finished=((0, 10),)), JobState(job="job3", finished=((0, 7),)))
    assert turns_of(1, work) == [("job1", []), ("job3", [7]), ("job3", [8, 9])]


def test_no_turn_begins_of_a_job_that_is_over_or_has_failed_but_its_first_one():
    start = attempt(2, world_size=1, jobs=ALL)
    over = {"job3"}
    queue = FixedQueue(jobs_of_rank(JOBS, start, ROUND_ROBIN, rank=0, questions=ASKED), over.__contains__)
    names = []
    while (task := queue.next_job()) is not None:
        names.append(task.job.config.name)
        queue.job_ended(task, failed=names == ["job0", "job1", "job3", "job1"])
    assert names == ["job0", "job1", "job3", "job1", "job2", "job4"]


def episodes_in(ranges) -> list[int]:
    return [index for begin, end in ranges for index in range(begin, end)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("remaining", [(), ((0, 1),), ((3, 5), (6, 10)), ((0, 100),), ((0, 7), (9, 10), (50, 93))])
def test_shares_of_a_job_are_consecutive_and_differ_by_one_episode_at_most(remaining, world_size):
    for first_rank in range(world_size):
        shares = split_shares(remaining, world_size, first_rank=first_rank)
        sizes = [count_episodes(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        going_round = [shares[(first_rank + step) % world_size] for step in range(world_size)]
        assert [index for share in going_round for index in episodes_in(share)] == episodes_in(remaining)


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("remaining", [((0, 1),), ((3, 5), (6, 10)), ((0, 1000),)])
def test_pieces_hold_every_episode_once_and_in_order(remaining, world_size):
    pieces = pieces_of(remaining, total_remaining=count_episodes(remaining), world_size=world_size)
    assert [index for piece in pieces for index in episodes_in(piece)] == episodes_in(remaining)
    assert all(pieces)


@pytest.mark.parametrize(
    ("num_episodes", "total_remaining", "sizes"),
    [
        (1000, 1000, [16] * 40 + [15] * 24),
        (20, 20, [1] * 20),
        # A thousandth of a rank's share of the run is one, ten and eleven episodes.
        (100, 15_999, [2] * 36 + [1] * 28),
        (100, 80_000, [10] * 10),
        (100, 88_000, [12] + [11] * 8),
        (25, 80_000, [13, 12]),
        (9, 80_000, [9]),
        (100, 1_000_000, [100]),
    ],
)
def test_a_job_is_cut_into_eight_pieces_per_rank_none_smaller_than_a_thousandth_of_a_ranks_share(
    num_episodes, total_remaining, sizes
):
    pieces = pieces_of(((0, num_episodes),), total_remaining=total_remaining, world_size=8)
    assert [count_episodes(piece) for piece in pieces] == sizes
    assert pieces_of((), total_remaining=total_remaining, world_size=8) == []


def work(job_index: int, expected_s: float, *, num_ranks: int = 0, environment: str = "table") -> OpenWork:
    return OpenWork(job_index=job_index, expected_s=expected_s, num_ranks=num_ranks, environment_key=environment)


LONG, SHORT = work(0, 400.0, num_ranks=10), work(1, 2000.0, num_ranks=10)
PIECES = [replace(LONG, piece_s=100.0), replace(SHORT, piece_s=10.0)]


@pytest.mark.parametrize(
    ("jobs", "order"),
    [
        ([work(0, 5.0), work(1, 50.0), work(2, 5.0)], [1, 0, 2]),
        # A job that others work on counts for what would be left to each.
        ([work(0, 100.0, num_ranks=3), work(1, 30.0), work(2, 20.0)], [1, 0, 2]),
        # In the end long pieces come first, and before that they do not.
        (PIECES, [0, 1]),
        ([*PIECES, work(2, 40_000.0, num_ranks=10)], [2, 1, 0]),
    ],
)
def test_the_longest_job_comes_first_and_equal_ones_in_order_of_the_file(jobs, order):
    assert [each.job_index for each in order_of_work(jobs)] == order


@pytest.mark.parametrize(
    ("environments", "built", "chosen"),
    [
        (["kitchen", "table", "table", "table"], "table", 1),
        (["kitchen", "table", "table", "table"], "kitchen", 0),
        (["kitchen", "table", "table", "table"], "garden", 0),
        (["kitchen", "table", "table", "table"], None, 0),
        (["table", "table", "kitchen", "kitchen"], "kitchen", 0),
        # The middle one of an odd number is among the longer.
        (["table", "kitchen", "garden"], "kitchen", 1),
        (["table", "kitchen", "garden"], "garden", 0),
        (["table"], None, 0),
    ],
)
def test_a_rank_keeps_its_environment_if_that_serves_one_of_the_longer_jobs(environments, built, chosen):
    order = [work(index, 9.0 - index, environment=name) for index, name in enumerate(environments)]
    assert choose(order, built) == chosen


def measured(episodes: int, env_steps: int, seconds: float) -> Measured:
    return Measured(episodes=episodes, env_steps=env_steps, seconds=seconds)


KINDS = {0: "a", 1: "a", 2: "b", 3: "c"}
APART = [(0, measured(10, 1000, 10.0)), (2, measured(10, 1000, 30.0))]


@pytest.mark.parametrize(
    ("known", "job", "left", "takes_s"),
    [
        # Before anything is measured more work takes longer.
        ([], 0, {"episodes": 20}, 20.0),
        ([], 0, {"env_steps": 500}, 5.0),
        # A job goes on as it went, else like its kind, and else like all.
        ([(0, measured(4, 400, 8.0)), (0, measured(1, 100, 7.0))], 0, {"episodes": 10}, 30.0),
        (APART, 1, {"episodes": 5}, 5.0),
        (APART, 3, {"episodes": 5}, 10.0),
        (APART, 1, {"env_steps": 200}, 2.0),
        ([*APART, (1, measured(10, 1000, 50.0))], 1, {"episodes": 10}, 50.0),
        # Work in steps is timed by steps, and work in episodes by episodes.
        ([(0, measured(4, 1000, 20.0))], 0, {"env_steps": 50}, 1.0),
        ([(0, measured(4, 1000, 20.0))], 0, {"episodes": 1}, 5.0),
        # Of which no episode ended, and that took no time.
        ([(1, measured(2, 10, 8.0)), (0, measured(0, 0, 4.0))], 0, {"episodes": 1}, 6.0),
        ([(0, measured(0, 50, 5.0))], 0, {"episodes": 7}, 7.0),
        ([(0, measured(5, 50, 0.0))], 0, {"episodes": 7}, 7.0),
    ],
)
def test_work_takes_as_long_as_what_was_measured_of_it_of_its_kind_or_of_all(known, job, left, takes_s):
    measurements = Measurements(KINDS)
    for index, what in known:
        measurements.add(index, what)
    assert expected_s(measurements.of(job), **left) == pytest.approx(takes_s)
