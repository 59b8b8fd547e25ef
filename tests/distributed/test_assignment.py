import pytest

from isaaclab_arena.distributed.assignment import ASSIGNMENTS, assign_jobs, round_robin
from isaaclab_arena.errors import ConfigError


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


def test_there_is_at_least_one_rank():
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        assign_jobs("round_robin", 3, 0)
