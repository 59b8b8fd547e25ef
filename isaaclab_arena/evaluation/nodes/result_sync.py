"""How the ranks of a run know of each other's work: from the folder they share, and by letters where they do not."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from isaaclab_arena.distributed.mailbox import Mailbox, MailboxLostError
from isaaclab_arena.distributed.rendezvous import RankReport, RankWatch
from isaaclab_arena.evaluation.nodes.node_directory import Place
from isaaclab_arena.evaluation.nodes.result_receiver import Collector
from isaaclab_arena.evaluation.nodes.result_sender import Courier


class Exchange:
    """What a rank tells the others and hears of them while a run goes. A context manager, for as long as it does.

    Args:
        mailbox: Where words are left for ranks on other machines.
        rank: This rank.
        places: Where each rank writes, by rank.
        output_directory: Where this rank writes.
        run_id: Which start of the program.
        jobs: Names of the jobs of the run.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        rank: int,
        places: Sequence[Place],
        output_directory: Path,
        run_id: str,
        jobs: Sequence[str],
    ) -> None:
        self._mailbox = mailbox
        self._rank = rank
        self._is_away = not places[rank].with_rank_zero
        self._neighbours = [other for other, place in enumerate(places) if place.shares_with(places[rank])]
        self._is_needed = len(self._neighbours) < len(places)
        self._courier = Courier(mailbox, rank=rank, output_directory=output_directory, sends_files=self._is_away)
        away = [other for other, place in enumerate(places) if not place.with_rank_zero]
        self._collector = Collector(mailbox, senders=away, jobs=jobs, output_directory=output_directory)
        self._stack = ExitStack()
        self.watch = RankWatch(
            output_directory,
            world_size=len(places),
            run_id=run_id,
            find_status=self._status if self._is_needed else None,
        )

    @property
    def is_away(self) -> bool:
        """Whether this rank writes in another folder than rank 0, and so is none that could merge."""
        return self._is_away

    def __enter__(self) -> Self:
        if self._is_needed:
            self._stack.enter_context(self._courier)
            if self._rank == 0:
                self._stack.enter_context(self._collector)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def follow(self, job: str) -> None:
        """Say that this rank begins to write about a job."""
        self._courier.follow(job)

    def collect(self) -> None:
        """Put what ranks elsewhere have sent until now into the folder of this rank, which is about to merge.

        Raises:
            StorageError: If it cannot be written.
        """
        if self._is_needed:
            self._collector.collect()

    def rank_zero_is_there(self) -> bool:
        """Whether rank 0 has not gone, as far as this rank can know."""
        return self.watch.look_at(0).alive and not self._mailbox.is_lost

    def neighbours(self) -> list[RankReport]:
        """Look at the ranks that write in the same folder, this one among them; one report each, by rank."""
        return [self.watch.look_at(rank) for rank in self._neighbours]

    def _status(self, rank: int) -> str | None:
        try:
            return self._mailbox.status(rank)
        except MailboxLostError:
            return None
