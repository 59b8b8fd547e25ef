import pytest

from isaaclab_arena.evaluation.planning import pieces_of, split_shares
from isaaclab_arena.interfaces.episode import count_episodes


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
