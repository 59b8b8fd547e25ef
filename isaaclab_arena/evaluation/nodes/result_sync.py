"""Lets the ranks of a run see each other's work: in the directory they share, and by messages where they share none."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from isaaclab_arena.evaluation.heartbeat.rank_watch import RankReport, RankWatch
from isaaclab_arena.evaluation.nodes.message_store import MessageStore, StoreLostError
from isaaclab_arena.evaluation.nodes.node_directory import NodeDirectory
from isaaclab_arena.evaluation.nodes.result_receiver import ResultReceiver
from isaaclab_arena.evaluation.nodes.result_sender import ResultSender


class ResultSync:
    """What a rank sends to the others and sees of them while a run goes. A context manager, for that time.

    Args:
        store: Where messages for ranks of other nodes are left.
        rank: This rank.
        directories: Where each rank writes, by rank.
        output_directory: Where this rank writes.
        run_id: Which start of the program.
        jobs: Names of the jobs of the run.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        rank: int,
        directories: Sequence[NodeDirectory],
        output_directory: Path,
        run_id: str,
        jobs: Sequence[str],
    ) -> None:
        self._store = store
        self._rank = rank
        self._is_away = not directories[rank].with_rank_zero
        self._neighbours = [other for other, each in enumerate(directories) if each.shares_with(directories[rank])]
        self._is_needed = len(self._neighbours) < len(directories)
        self._sender = ResultSender(store, rank=rank, output_directory=output_directory, sends_files=self._is_away)
        away = [other for other, each in enumerate(directories) if not each.with_rank_zero]
        self._receiver = ResultReceiver(store, senders=away, jobs=jobs, output_directory=output_directory)
        self._stack = ExitStack()
        self.watch = RankWatch(
            output_directory,
            world_size=len(directories),
            run_id=run_id,
            find_status=self._status if self._is_needed else None,
        )

    @property
    def is_away(self) -> bool:
        """Whether this rank writes in another directory than rank 0, and so is none that could merge."""
        return self._is_away

    def __enter__(self) -> Self:
        if self._is_needed:
            self._stack.enter_context(self._sender)
            if self._rank == 0:
                self._stack.enter_context(self._receiver)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def follow(self, job: str) -> None:
        """Say that this rank begins to write about a job."""
        self._sender.follow(job)

    def receive(self) -> None:
        """Put what ranks elsewhere have sent until now into the directory of this rank, which is about to merge.

        Raises:
            StorageError: If it cannot be written.
        """
        if self._is_needed:
            self._receiver.receive()

    def rank_zero_is_there(self) -> bool:
        """Whether rank 0 has not gone, as far as this rank can know."""
        return self.watch.look_at(0).alive and not self._store.is_lost

    def neighbours(self) -> list[RankReport]:
        """Look at the ranks that write in the same directory, this one among them; one report each, by rank."""
        return [self.watch.look_at(rank) for rank in self._neighbours]

    def _status(self, rank: int) -> str | None:
        try:
            return self._store.status(rank)
        except StoreLostError:
            return None
