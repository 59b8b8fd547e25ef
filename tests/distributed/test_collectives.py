"""When connections between ranks of one machine end; tests/training/learner/test_ranks shows what collectives give."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from isaaclab_arena.distributed.ranks import DistributedError, Ranks, between_neighbours, connect_neighbours
from tests.distributed.threads import ranks_in_threads


def failure_of_rank_zero(error: Exception | None) -> str:
    """Message of rank 0 about rank 1, whose training ended with or without an error."""

    def train(rank_one: Ranks) -> None:
        with between_neighbours(rank_one, timeout_s=60.0):
            if error is not None:
                raise error

    first, second = ranks_in_threads(2)
    with ThreadPoolExecutor(1) as thread:
        trained = thread.submit(train, second)
        neighbours = connect_neighbours(first, timeout_s=0.5)
        assert neighbours is not None
        assert trained.exception() is error
        with closing(neighbours), pytest.raises(DistributedError) as failure:
            neighbours.gather(torch.ones(3))
    return str(failure.value)


def test_a_training_that_is_over_closes_its_connections():
    assert "without rank 1: its connection is lost" in failure_of_rank_zero(None)


def test_a_rank_that_failed_tells_its_launcher_before_the_others_notice():
    assert "without rank 1: nothing came for 0.5 s" in failure_of_rank_zero(ValueError("this rank has had enough"))
