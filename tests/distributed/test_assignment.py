import pytest

from isaaclab_arena.distributed.assignment import (
    ASSIGNMENTS,
    assign_jobs,
    pieces_of,
    round_robin,
    split_shares,
)
from isaaclab_arena.episode_ranges import count_episodes
from isaaclab_arena.errors import ConfigError


@pytest.fixture(autouse=True)
def _registered_for_one_test(monkeypatch):
    monkeypatch.setattr(ASSIGNMENTS, "_registered", {})


def test_round_robin_deals_jobs_like_cards():
    assert round_robin(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert all(index % 4 == rank for rank, share in enumerate(round_robin(50, 4)) for index in share)


@pytest.mark.parametrize("assignment", ["round_robin", "contiguous"])
@pytest.mark.parametrize("num_jobs", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_job_goes_to_exactly_one_rank_and_shares_differ_by_one_at_most(assignment, num_jobs, world_size):
    shares = assign_jobs(assignment, num_jobs, world_size)
    assert len(shares) == world_size
    assert sorted(index for share in shares for index in share) == list(range(num_jobs))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_contiguous_keeps_neighbours_together():
    assert assign_jobs("contiguous", 5, 2) == [[0, 1], [2, 3, 4]]


def test_an_unknown_assignment_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="no assignment called 'round-robin'; did you mean 'round_robin'"):
        assign_jobs("round-robin", 4, 2)


def test_an_assignment_that_loses_a_job_is_refused():
    ASSIGNMENTS.register("forgetful", lambda num_jobs, world_size: [[0]] * world_size)
    with pytest.raises(ConfigError, match="'forgetful' does not give each of 3 jobs to exactly one of 2 ranks"):
        assign_jobs("forgetful", 3, 2)


def test_a_rank_runs_its_jobs_in_the_order_of_the_file_whatever_the_assignment_says():
    ASSIGNMENTS.register("backwards", lambda num_jobs, world_size: [[4, 2, 0], [3, 1]])
    assert assign_jobs("backwards", 5, 2) == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("shares", [[[0, 1, 2]], [[0, 1], [2], []], [[0, 1], [1, 2]], [[0, 1], [3]], [[], []]])
def test_an_assignment_gives_every_job_once_to_as_many_ranks_as_there_are(shares):
    ASSIGNMENTS.register("odd", lambda num_jobs, world_size: shares)
    with pytest.raises(ConfigError, match="'odd' does not give each of 3 jobs to exactly one of 2 ranks"):
        assign_jobs("odd", 3, 2)


def test_there_is_at_least_one_rank():
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        assign_jobs("round_robin", 3, 0)


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
