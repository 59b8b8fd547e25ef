"""Collectives between ranks and between neighbours."""

import socket
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.ranks import DistributedError, Neighbours, Ranks, between_neighbours, connect_neighbours
from tests.distributed.threads import ranks_in_threads

# When connections between ranks of one machine end; tests/training/learner/test_ranks shows what collectives give.


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, "connection is lost"), (ValueError("this rank has had enough"), "nothing came for 0.5 s")],
)
def test_a_training_that_is_over_closes_its_connections_and_one_that_failed_tells_its_launcher_first(error, told):
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
        with closing(neighbours), pytest.raises(DistributedError, match=f"without rank 1: .*{told}"):
            neighbours.gather(torch.ones(3))


# Ranks of one machine that exchange tensors over Unix sockets; they are threads of one process here.


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls at the same time, one a thread, and return what they give, or the `DistributedError` they raise."""

    def given(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DistributedError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(given, calls))


def connected(ranks: Sequence[Ranks], timeout_s: float = 20.0) -> list[Neighbours | None]:
    return at_once([lambda rank=rank: connect_neighbours(rank, timeout_s=timeout_s) for rank in ranks])


@pytest.fixture
def connect():
    """Connections of so many ranks, closed at the end."""
    with ExitStack() as stack:

        def connect(world_size: int, timeout_s: float = 20.0) -> list[Neighbours]:
            neighbours = connected(ranks_in_threads(world_size), timeout_s)
            return [stack.enter_context(closing(each)) for each in neighbours]  # type: ignore[type-var]

        yield connect


def gathered(neighbours: Sequence[Neighbours], values: Sequence[torch.Tensor]) -> list[Any]:
    return at_once([lambda each=each, own=own: each.gather(own) for each, own in zip(neighbours, values, strict=True)])


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_gets_the_tensors_of_all_by_rank_whatever_their_size(connect, world_size):
    neighbours = connect(world_size)
    # Far more than the buffers of a socket hold, in both directions at once, and small ones again in between.
    for count in (1, 9_219, 2_000_000, 3, 500_000):
        values = [torch.randn(count) for _ in range(world_size)]
        for of_all in gathered(neighbours, values):
            assert all(map(torch.equal, of_all, values))


@pytest.mark.parametrize(
    "own",
    [
        torch.tensor(7),
        torch.empty(0),
        torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True),
        torch.arange(12.0).reshape(3, 4).T,
        torch.tensor([float("nan"), -0.0], dtype=torch.float64),
    ],
)
def test_tensors_of_any_shape_and_type_arrive(connect, own):
    for of_all in gathered(connect(2), [own, own]):
        for each in of_all:
            torch.testing.assert_close(each, own.detach(), rtol=0, atol=0, equal_nan=True)


def test_a_rank_that_has_gone_is_named_at_once(connect):
    neighbours = connect(3)
    neighbours[1].close()
    failures = at_once([lambda rank=rank: neighbours[rank].gather(torch.ones(2_000_000)) for rank in (0, 2)])
    assert all("without rank 1" in str(failure) for failure in failures)


def test_what_a_rank_sent_before_it_closed_arrives(connect):
    first, second = connect(2)

    def send_and_close() -> None:
        second.gather(torch.ones(9_219))
        second.close()

    of_all, _ = at_once([lambda: (time.sleep(0.2), first.gather(torch.ones(9_219)))[1], send_and_close])
    assert torch.equal(of_all[1], torch.ones(9_219))


def test_a_silent_rank_is_named_after_the_time_limit_and_ranks_of_different_exchanges_are_told_so(connect):
    for count in (1, 2_000_000):
        with pytest.raises(DistributedError, match=r"rank 1: .* 0\.3 s"):
            connect(2, timeout_s=0.3)[0].gather(torch.ones(count))
    failures = gathered(connect(2, timeout_s=1.0), [torch.ones(4), torch.ones(8)])
    assert "another exchange" in str(failures[0])
    assert "nothing came" in str(failures[1])


def test_nothing_is_left_of_the_directories_of_sockets(connect, monkeypatch):
    # ``tmp_path`` may be too long: names of sockets have at most 107 bytes.
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        modes = []
        listen = socket.socket.listen

        def watched(self: socket.socket, backlog: int) -> None:
            modes.append(stat.S_IMODE(Path(self.getsockname()).parent.stat().st_mode))
            listen(self, backlog)

        monkeypatch.setattr(socket.socket, "listen", watched)
        for each in connect(2):
            each.close()
        assert modes == [0o700, 0o700]
        assert list(Path(directory).iterdir()) == []


def test_where_there_can_be_no_sockets_all_ranks_use_the_process_group(tmp_path, monkeypatch):
    ranks = ranks_in_threads(2)
    ranks[1].context = replace(ranks[1].context, device=torch.device("cuda"))
    assert connected(ranks) == [None, None]
    assert connected(ranks_in_threads(9)) == [None] * 9
    assert connected(ranks_in_threads(1)) == [None]
    long = tmp_path / ("d" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert connected(ranks_in_threads(2)) == [None, None]
