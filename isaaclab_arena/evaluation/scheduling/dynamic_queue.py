"""Work that ranks claim as they go: a rank that is ahead helps the others, and what a lost rank left is taken over.

Ranks agree on the pieces beforehand, because each of them cuts the jobs alike. Who runs a piece is settled by making
a file, so no rank asks another, and none is needed: whichever ranks are left finish the run.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isaaclab_arena.distributed.rendezvous import RankWatch
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.scheduling.claimed_episodes import ClaimedEpisodes, SharedRun
from isaaclab_arena.evaluation.scheduling.claims import ClaimFolder
from isaaclab_arena.evaluation.scheduling.divided_jobs import divided_jobs
from isaaclab_arena.evaluation.scheduling.leases import Leases
from isaaclab_arena.evaluation.scheduling.work_board import HeldPiece, WorkBoard
from isaaclab_arena.evaluation.scheduling.work_queue import AssignedJob
from isaaclab_arena.storage.layout import CLAIMS_FOLDER, attempt_file_name

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.5


def dynamic_queue(
    jobs: Sequence[Job], run: SharedRun, *, rank: int, stop_requested: Callable[[], bool]
) -> "DynamicQueue":
    """Return the queue from which a rank takes its work.

    Args:
        jobs: Every job of the run.
        run: What the ranks share.
        rank: This rank.
        stop_requested: True once this process was told to stop.

    Raises:
        StorageError: If claims cannot be made in the run's folder.
    """
    attempt = run.attempt
    folder = run.output_directory / CLAIMS_FOLDER / Path(attempt_file_name(attempt.number)).stem
    watch = RankWatch(run.output_directory, world_size=attempt.world_size, run_id=attempt.run_id)
    board = WorkBoard(
        divided_jobs(jobs, attempt, split_jobs=run.split_jobs),
        ClaimFolder(folder, rank=rank, run_id=attempt.run_id),
        Leases(watch, lease_s=run.lease_s),
        rank=rank,
        lease_s=run.lease_s,
    )
    return DynamicQueue(board, run, stop_requested=stop_requested)


class DynamicQueue:
    """The jobs that a rank claims, one after the other, until nothing is left for any rank.

    Args:
        board: What is known of the pieces of all jobs.
        run: What the ranks share.
        stop_requested: True once this process was told to stop; it ends the wait for others.
        pause: Waits for a number of seconds.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        board: WorkBoard,
        run: SharedRun,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._run = run
        self._stop_requested = stop_requested
        self._pause = pause
        self._clock = clock
        self._built_environment: str | None = None
        self._current: ClaimedEpisodes | None = None
        self._said_that_it_waits = False

    def next_job(self) -> AssignedJob | None:
        """Claim something to do; wait while other ranks work, because what they have claimed may become free.

        Returns:
            What to do next; None when all is done or failed, or this process was told to stop.

        Raises:
            StorageError: If the claims cannot be read or made.
        """
        while not self._stop_requested():
            self._board.refresh()
            held = self._board.claim_next(self._built_environment)
            if held is None:
                # What is known may be a second old: before the rank waits or leaves it looks again.
                self._board.refresh(now=True)
                held = self._board.claim_next(self._built_environment)
            if held is not None:
                return self._assigned(held)
            if not self._others_at_work():
                return None
            self._pause(_POLL_INTERVAL_S)
        return None

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Say that this rank has left a job: its pieces are done, or the job has failed and nobody takes more of it.

        Raises:
            StorageError: If that cannot be written.
        """
        current, self._current = self._current, None
        if failed:
            self._built_environment = None
            self._board.give_up(job.config.index)
        elif current is not None and not self._stop_requested():
            current.finish_pieces()

    def _assigned(self, held: HeldPiece) -> AssignedJob:
        """Return the job to run for the sake of a piece; if no episode of it is missing, its report may be."""
        divided = held.divided
        supply = ClaimedEpisodes(held, self._board, self._run, clock=self._clock)
        if held.was_claimed_before:
            missing = supply.num_missing
            _LOG.info(
                "taking over a part of job '%s' from rank %s: %s",
                divided.job.config.name,
                "unknown" if held.taken_from is None else held.taken_from,
                "all of it" if missing is None else f"{missing} of its episodes are missing",
            )
        self._current = supply
        self._built_environment = divided.environment_key
        self._said_that_it_waits = False
        num_episodes = None if len(divided.pieces) > 1 else supply.num_missing
        return AssignedJob(job=divided.job, supply=supply, num_episodes=num_episodes, observers=(supply,))

    def _others_at_work(self) -> bool:
        pieces = self._board.pieces_of_others()
        if pieces and not self._said_that_it_waits:
            _LOG.info("nothing is left to claim; waiting for other ranks, which work on %d pieces", pieces)
            self._said_that_it_waits = True
        return pieces > 0
