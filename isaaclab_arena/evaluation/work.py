"""What one rank has to do in an attempt, whether it was settled before the start or is claimed on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.rendezvous import RankWatch
from isaaclab_arena.evaluation.planning import DYNAMIC, RunRequest
from isaaclab_arena.evaluation.work_queue import FixedQueue, WorkQueue, jobs_of_rank, unfinished
from isaaclab_arena.storage.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """The work of one rank.

    Attributes:
        queue: Its jobs, one after the other.
        num_jobs: How many it expects to run.
        num_episodes: How many episodes, as far as known.
        stalled_after_s: After how much silence [s] a rank is not waited for at the end; None to wait however long.
        others_may_finish_jobs: Whether other ranks finish what a dead one has begun.
    """

    queue: WorkQueue
    num_jobs: int
    num_episodes: int
    stalled_after_s: float | None = None
    others_may_finish_jobs: bool = False


def work_of_rank(
    request: RunRequest,
    attempt: Attempt,
    *,
    output_directory: Path,
    rank: int,
    watch: RankWatch,
    stop_requested: Callable[[], bool],
) -> RankWork:
    """Return what a rank has to do.

    Args:
        request: What the run is to do.
        attempt: What of it is left.
        output_directory: The run's folder.
        rank: Which rank.
        watch: Sees how the other ranks are.
        stop_requested: Whether this rank was told to stop.

    Raises:
        ConfigError: If the assignment is unknown.
    """
    options, jobs = request.options, request.jobs
    if options.assignment != DYNAMIC:
        assigned = jobs_of_rank(jobs, attempt, rank=rank, split_jobs=options.split_jobs)
        return RankWork(
            queue=FixedQueue(assigned),
            num_jobs=len(assigned),
            num_episodes=sum(each.num_episodes or 0 for each in assigned),
        )
    raise NotImplementedError
