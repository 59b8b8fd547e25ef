"""What one rank has to do in an attempt, whether it was settled before the start or is claimed on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.assignment import DYNAMIC
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.scheduling.dynamic_queue import SharedRun, dynamic_queue
from isaaclab_arena.evaluation.scheduling.work_queue import FixedQueue, WorkQueue, jobs_of_rank, unfinished
from isaaclab_arena.storage.run.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """The work of one rank.

    Attributes:
        queue: Its jobs, one after the other.
        num_jobs: How many it runs; 0 where ranks share jobs.
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
    stop_requested: Callable[[], bool],
) -> RankWork:
    """Return what a rank has to do.

    Args:
        request: What the run is to do.
        attempt: What of it is left.
        output_directory: The run's folder.
        rank: Which rank.
        stop_requested: Whether this rank was told to stop.

    Raises:
        ConfigError: If the assignment is unknown.
    """
    options, jobs = request.options, request.jobs
    if options.assignment != DYNAMIC:
        assigned = jobs_of_rank(jobs, attempt, rank=rank, split_jobs=options.split_jobs)
        return RankWork(
            queue=FixedQueue(assigned),
            num_jobs=0 if options.split_jobs else len(assigned),
            num_episodes=sum(each.num_episodes or 0 for each in assigned),
        )
    shared = SharedRun(
        output_directory=output_directory, attempt=attempt, split_jobs=options.split_jobs, lease_s=options.lease_s
    )
    left = unfinished(jobs, attempt)
    num_episodes = sum(_num_unfinished(jobs[index].config.num_episodes, finished) for index, finished in left.items())
    return RankWork(
        queue=dynamic_queue(jobs, shared, rank=rank, stop_requested=stop_requested),
        # Who will run what is open; the display adds up what ranks say, so each says its even part.
        num_jobs=0,
        num_episodes=len(range(rank, num_episodes, attempt.world_size)),
        stalled_after_s=options.lease_s,
        others_may_finish_jobs=True,
    )


def _num_unfinished(num_episodes: int | None, finished: EpisodeRanges) -> int:
    return 0 if num_episodes is None else num_episodes - count_episodes(finished)
