"""The order of jobs and the size of their pieces."""

from dataclasses import replace

import pytest

from isaaclab_arena.config.schema import Question
from isaaclab_arena.evaluation.claims import (
    Measured,
    Measurements,
    OpenWork,
    choose,
    expected_s,
    order_of_work,
    slots_to_use,
)
from isaaclab_arena.evaluation.planning import pieces_of, split_shares
from isaaclab_arena.evaluation.queues import FixedQueue, FixedShare, jobs_of_rank
from isaaclab_arena.interfaces.episode import count_episodes
from isaaclab_arena.storage.ledger import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

JOBS = tuple(coin_job(f"job{index}", index=index, num_episodes=10) for index in range(5))
ALL = tuple(AttemptEntry(job=job.config.name) for job in JOBS)


def taken(assigned):
    return {each.job.config.name: list(each.episodes.take(range(10))) for each in assigned}


def of_rank(rank, work=ALL, *, world_size=2, split=False, jobs=JOBS):
    start = attempt(2, world_size=world_size, jobs=work)
    return jobs_of_rank(jobs, start, rank=rank, split=split)


def test_round_robin_goes_by_the_index_in_the_file_also_when_jobs_are_finished():
    left = (ALL[1], ALL[2], ALL[4])
    assert list(taken(of_rank(0, left))) == ["job2", "job4"]
    assert list(taken(of_rank(1, left))) == ["job1"]


def test_only_episodes_that_are_not_finished_are_handed_out():
    left = (AttemptEntry(job="job0", finished=((0, 3), (5, 9))),)
    (assigned,) = of_rank(0, left)
    assert list(assigned.episodes.take(range(10))) == [3, 4, 9]
    assert assigned.num_episodes == 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_split_jobs_give_every_unfinished_episode_to_exactly_one_rank(world_size):
    left = (AttemptEntry(job="job0", finished=((2, 4),)), *ALL[1:])
    everything = [taken(of_rank(rank, left, world_size=world_size, split=True)) for rank in range(world_size)]
    for work in left:
        given = sorted(index for shares in everything for index in shares.get(work.job, []))
        assert given == [index for index in range(10) if work.job != "job0" or index not in (2, 3)]


def test_a_job_of_unknown_length_is_not_split():
    unknown = (replace(JOBS[0], config=replace(JOBS[0].config, num_episodes=None)),)
    shares = [of_rank(rank, ALL[:1], world_size=3, split=True, jobs=unknown) for rank in range(3)]
    assert [len(share) for share in shares] == [1, 0, 0]
    assert shares[0][0].num_episodes is None


def test_a_job_that_owes_only_its_report_stays_with_one_rank():
    work = (AttemptEntry(job="job1", finished=((0, 10),)),)
    shares = [of_rank(rank, work, split=True) for rank in range(2)]
    assert [len(share) for share in shares] == [0, 1]


def test_a_job_that_the_file_says_not_to_run_is_left_out():
    skipped = replace(JOBS[0], config=replace(JOBS[0].config, status="completed"))
    assert of_rank(0, ALL[:1], jobs=(skipped,)) == []


def test_the_queue_ends_after_its_last_job():
    queue = FixedQueue(of_rank(0))
    names = []
    while (assigned := queue.next_job()) is not None:
        names.append(assigned.job.config.name)
        queue.job_ended(assigned.job, failed=False)
    assert names == ["job0", "job2", "job4"]


ASKED = (Question(name="q", jobs=("job3", "job1"), max_episodes=10),)


def turns_of(rank, work=ALL, *, split=False, world_size=2):
    start = attempt(2, world_size=world_size, jobs=work)
    assigned = jobs_of_rank(JOBS, start, rank=rank, split=split, questions=ASKED)
    return [(each.job.config.name, list(each.episodes.take(range(10)))) for each in assigned]


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


def test_ranks_that_split_jobs_share_each_round():
    work = (ALL[1], ALL[3])
    first, second = (turns_of(rank, work, split=True) for rank in range(2))
    assert first == [("job1", [4, 5, 6, 7]), ("job3", [4, 5, 6, 7]), ("job1", [9]), ("job3", [9])]
    assert second == [("job1", [0, 1, 2, 3]), ("job3", [0, 1, 2, 3]), ("job1", [8]), ("job3", [8])]


def test_a_compared_job_that_owes_only_its_report_gets_a_turn_without_episodes():
    work = (AttemptEntry(job="job1", finished=((0, 10),)), AttemptEntry(job="job3", finished=((0, 7),)))
    assert turns_of(1, work) == [("job1", []), ("job3", [7]), ("job3", [8, 9])]


def test_no_turn_begins_of_a_job_that_is_over_or_has_failed_but_its_first_one():
    start = attempt(2, world_size=1, jobs=ALL)
    over = {"job3"}
    queue = FixedQueue(jobs_of_rank(JOBS, start, rank=0, split=False, questions=ASKED), over.__contains__)
    names = []
    while (assigned := queue.next_job()) is not None:
        names.append(assigned.job.config.name)
        queue.job_ended(assigned.job, failed=names == ["job0", "job1", "job3", "job1"])
    assert names == ["job0", "job1", "job3", "job1", "job2", "job4"]


def test_a_share_hands_out_nothing_once_its_job_is_over():
    answers = iter([False, False, True])
    episodes = FixedShare(job_is_over=lambda: next(answers))
    assert list(episodes.take(range(10))) == [0, 1]


def test_a_job_that_owes_only_its_report_is_asked_about_too():
    asked = []

    def is_over(job: str) -> bool:
        asked.append(job)
        return False

    start = attempt(2, world_size=1, jobs=(AttemptEntry(job="job1", finished=((0, 10),)),))
    (assigned,) = jobs_of_rank(JOBS, start, rank=0, split=False, is_over=is_over)
    assert (list(assigned.episodes.take(range(10))), asked) == ([], ["job1"])


def test_a_share_without_an_end_is_handed_out_lazily():
    indices = FixedShare(finished=((0, 2),)).take(iter(range(10**9)))
    assert [next(indices), next(indices)] == [2, 3]


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


def test_the_longer_shares_of_a_job_come_first_from_the_rank_that_begins():
    assert split_shares(((0, 11),), 4, first_rank=0) == [((0, 3),), ((3, 6),), ((6, 9),), ((9, 11),)]
    assert split_shares(((0, 11),), 4, first_rank=3) == [((3, 6),), ((6, 9),), ((9, 11),), ((0, 3),)]
    assert split_shares(((2, 4), (8, 11)), 2, first_rank=1) == [((9, 11),), ((2, 4), (8, 9))]


def test_a_job_of_one_episode_stays_where_round_robin_puts_it():
    for job_index in range(7):
        shares = split_shares(((5, 6),), 3, first_rank=job_index % 3)
        assert [rank for rank, share in enumerate(shares) if share] == [job_index % 3]


def test_many_short_jobs_do_not_all_burden_the_same_rank():
    per_rank = [0, 0, 0, 0]
    for job_index in range(40):
        for rank, share in enumerate(split_shares(((0, 5),), 4, first_rank=job_index % 4)):
            per_rank[rank] += count_episodes(share)
    assert per_rank == [50, 50, 50, 50]


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("remaining", [((0, 1),), ((3, 5), (6, 10)), ((0, 1000),)])
def test_pieces_hold_every_episode_once_and_in_order(remaining, world_size):
    pieces = pieces_of(remaining, total_remaining=count_episodes(remaining), world_size=world_size)
    assert [index for piece in pieces for index in episodes_in(piece)] == episodes_in(remaining)
    assert all(pieces)


def test_a_job_is_cut_into_eight_pieces_per_rank_where_it_has_the_episodes():
    assert len(pieces_of(((0, 1000),), total_remaining=1000, world_size=8)) == 64
    assert len(pieces_of(((0, 20),), total_remaining=20, world_size=8)) == 20
    assert pieces_of((), total_remaining=20, world_size=8) == []


@pytest.mark.parametrize(
    ("num_episodes", "total_remaining", "sizes"),
    [
        # A thousandth of a rank's share of the run is one, ten and eleven episodes.
        (100, 15_999, [2] * 36 + [1] * 28),
        (100, 80_000, [10] * 10),
        (100, 88_000, [12] + [11] * 8),
        (25, 80_000, [13, 12]),
        (9, 80_000, [9]),
    ],
)
def test_no_piece_is_smaller_than_a_thousandth_of_a_ranks_share(num_episodes, total_remaining, sizes):
    pieces = pieces_of(((0, num_episodes),), total_remaining=total_remaining, world_size=8)
    assert [count_episodes(piece) for piece in pieces] == sizes


def test_thousands_of_jobs_make_few_claims_each():
    pieces = pieces_of(((0, 100),), total_remaining=10_000 * 100, world_size=8)
    assert pieces == [((0, 100),)]
    long_job = pieces_of(((0, 50_000),), total_remaining=10_000 * 100, world_size=8)
    assert len(long_job) == 64


def work(job_index: int, expected_s: float, *, num_ranks: int = 0, environment: str = "table") -> OpenWork:
    return OpenWork(job_index=job_index, expected_s=expected_s, num_ranks=num_ranks, environment_key=environment)


def indices(order) -> list[int]:
    return [each.job_index for each in order]


def test_the_longest_job_comes_first_and_equal_ones_in_order_of_the_file():
    assert indices(order_of_work([work(0, 5.0), work(1, 50.0), work(2, 5.0)])) == [1, 0, 2]


def test_a_job_that_others_work_on_counts_for_what_would_be_left_to_each():
    order = order_of_work([work(0, 100.0, num_ranks=3), work(1, 30.0), work(2, 20.0)])
    assert indices(order) == [1, 0, 2]


def test_in_the_end_long_pieces_come_first_and_before_that_they_do_not():
    long, short = work(0, 400.0, num_ranks=10), work(1, 2000.0, num_ranks=10)
    assert indices(order_of_work([replace(long, piece_s=100.0), replace(short, piece_s=10.0)])) == [0, 1]
    much_left = work(2, 40_000.0, num_ranks=10)
    far_from_the_end = order_of_work([replace(long, piece_s=100.0), replace(short, piece_s=10.0), much_left])
    assert indices(far_from_the_end) == [2, 1, 0]


def test_a_rank_keeps_its_environment_if_that_serves_one_of_the_longer_jobs():
    order = [work(0, 9.0, environment="kitchen"), work(1, 8.0), work(2, 7.0), work(3, 6.0)]
    assert choose(order, "table") == 1
    assert choose(order, "kitchen") == 0
    assert choose(order, "garden") == 0
    assert choose(order, None) == 0


def test_a_short_job_is_not_preferred_though_its_environment_is_built():
    order = [work(0, 9.0), work(1, 8.0), work(2, 1.0, environment="kitchen"), work(3, 1.0, environment="kitchen")]
    assert choose(order, "kitchen") == 0


def test_the_middle_one_of_an_odd_number_of_jobs_is_among_the_longer():
    order = [work(0, 9.0), work(1, 8.0, environment="kitchen"), work(2, 7.0, environment="garden")]
    assert choose(order, "kitchen") == 1
    assert choose(order, "garden") == 0


def test_the_only_job_left_is_chosen():
    assert choose([work(4, 1.0)], None) == 0


def measured(episodes: int, env_steps: int, seconds: float) -> Measured:
    return Measured(episodes=episodes, env_steps=env_steps, seconds=seconds)


def test_before_anything_is_measured_more_episodes_take_longer():
    assert expected_s((), episodes=20) == 20
    assert expected_s((), env_steps=500) == 5


def test_a_job_is_expected_to_go_on_as_it_went():
    measurements = Measurements({0: "a", 1: "a"})
    measurements.add(0, measured(4, 400, 8.0))
    measurements.add(0, measured(1, 100, 7.0))
    assert expected_s(measurements.of(0), episodes=10) == pytest.approx(30.0)


def test_a_job_not_yet_measured_is_expected_to_go_like_its_kind_and_else_like_all():
    measurements = Measurements({0: "a", 1: "a", 2: "b", 3: "c"})
    measurements.add(0, measured(10, 1000, 10.0))
    measurements.add(2, measured(10, 1000, 30.0))
    assert expected_s(measurements.of(1), episodes=5) == pytest.approx(5.0)
    assert expected_s(measurements.of(3), episodes=5) == pytest.approx(10.0)
    assert expected_s(measurements.of(1), env_steps=200) == pytest.approx(2.0)


def test_what_a_job_took_itself_counts_before_what_its_kind_took():
    measurements = Measurements({0: "a", 1: "a", 2: "b"})
    measurements.add(0, measured(10, 1000, 10.0))
    measurements.add(1, measured(10, 1000, 50.0))
    assert [expected_s(measurements.of(job), episodes=10) for job in range(3)] == pytest.approx([10.0, 50.0, 30.0])


def test_work_in_steps_is_timed_by_steps_and_work_in_episodes_by_episodes():
    known = [measured(4, 1000, 20.0)]
    assert expected_s(known, env_steps=50) == pytest.approx(1.0)
    assert expected_s(known, episodes=1) == pytest.approx(5.0)


def test_a_job_of_which_no_episode_ended_is_expected_to_go_like_its_kind():
    measurements = Measurements({0: "a", 1: "a"})
    measurements.add(1, measured(2, 10, 8.0))
    measurements.add(0, measured(0, 0, 4.0))
    assert expected_s(measurements.of(0), episodes=1) == pytest.approx(6.0)


def test_work_of_which_no_episode_ended_says_nothing_of_episodes():
    assert expected_s([measured(0, 50, 5.0)], episodes=7) == 7


def test_work_that_took_no_time_says_nothing():
    assert expected_s([measured(5, 50, 0.0)], episodes=7) == 7


@pytest.mark.parametrize(
    ("num_envs", "open_episodes", "world_size", "unfinished_jobs", "slots"),
    [
        (64, 64, 8, 1, 8),
        (64, 64, 8, 8, 64),
        (64, 64, 8, 40, 64),
        (64, 90, 8, 3, 30),
        (64, 10, 8, 2, 3),
        (64, 10, 9, 2, 2),
        (64, 1, 8, 1, 1),
        (4, 1000, 8, 1, 4),
        (4, 3, 8, 1, 1),
        (4, 0, 8, 0, 1),
    ],
)
def test_a_rank_leaves_room_for_those_that_may_join_it(num_envs, open_episodes, world_size, unfinished_jobs, slots):
    assert (
        slots_to_use(num_envs, open_episodes=open_episodes, world_size=world_size, unfinished_jobs=unfinished_jobs)
        == slots
    )
