"""Gives a rank the queue of its jobs, whether they are settled before the start or claimed on the way."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from isaaclab_arena.evaluation.heartbeat.rank_watch import RankWatch
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.evaluation.plan.answered import answer_watch
from isaaclab_arena.evaluation.plan.episode_supply import UntilOver
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.scheduling.claim_table import ClaimTable
from isaaclab_arena.evaluation.scheduling.divided_jobs import divided_jobs
from isaaclab_arena.evaluation.scheduling.dynamic_queue import DynamicQueue
from isaaclab_arena.evaluation.scheduling.job_queue import AssignedJob, FixedQueue, JobQueue, jobs_of_rank
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.results.stopping.watch import AnswerWatch
from isaaclab_arena.storage.layout import CLAIMS_DIRECTORY, attempt_file_name
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
        observers: Have to be told what becomes of the episodes of every job, after they are committed.
        fails: Whether a job that the rank has left fails by the errors of its episodes.
    """

    queue: JobQueue
    num_jobs: int
    num_episodes: int
    stalled_after_s: float | None = None
    others_may_finish_jobs: bool = False
    observers: tuple[Observer, ...] = ()
    fails: Callable[[Job], bool] = lambda _: False


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
        output_directory: The run's directory.
        rank: Which rank.
        stop_requested: Whether this rank was told to stop.

    Raises:
        StorageError: If claims cannot be made in the run's directory.
    """
    options = request.options
    finished = {work.job: work.finished for work in attempt.jobs}
    watch = answer_watch(
        output_directory,
        request.questions,
        finished,
        attempt=attempt.number,
        max_equal_errors=options.max_equal_errors,
    )
    if options.mode is Assignment.DYNAMIC:
        table = _claim_table(request, attempt, output_directory, rank, watch.is_over)
        return RankWork(
            queue=DynamicQueue(
                table,
                output_directory,
                attempt,
                stop_requested=stop_requested,
                is_over=watch.lets_stop,
            ),
            # Who will run what is open; the display adds up what ranks say, so each says its even part.
            num_jobs=0,
            num_episodes=len(range(rank, table.num_episodes, attempt.world_size)),
            stalled_after_s=options.lease_s,
            others_may_finish_jobs=True,
            observers=(watch,),
            fails=partial(_fails, watch),
        )
    return _settled_work(request, attempt, rank, watch)


def _settled_work(request: RunRequest, attempt: Attempt, rank: int, watch: AnswerWatch) -> RankWork:
    """Return the work of a rank where that is settled before the start."""
    split = request.options.mode is Assignment.SPLIT
    assigned = jobs_of_rank(request.jobs, attempt, rank=rank, split=split, questions=request.questions)
    num_jobs = len({each.job.config.name for each in assigned})
    return RankWork(
        queue=FixedQueue([_until_over(each, watch) for each in assigned], partial(watch.is_over, now=True)),
        num_jobs=0 if split else num_jobs,
        num_episodes=sum(each.num_episodes or 0 for each in assigned),
        observers=(watch,),
        fails=partial(_fails, watch),
    )


def _until_over(assigned: AssignedJob, watch: AnswerWatch) -> AssignedJob:
    supply = UntilOver(supply=assigned.supply, is_over=partial(watch.lets_stop, assigned.job.config.name))
    return replace(assigned, supply=supply)


def _fails(watch: AnswerWatch, job: Job) -> bool:
    return watch.fails(job.config.name, job.config.num_episodes)


def _claim_table(
    request: RunRequest, attempt: Attempt, output_directory: Path, rank: int, is_over: Callable[[str], bool]
) -> ClaimTable:
    return ClaimTable(
        divided_jobs(request.jobs, attempt, request.questions),
        claims_directory(output_directory, attempt),
        RankWatch(output_directory, world_size=attempt.world_size, run_id=attempt.run_id),
        rank=rank,
        run_id=attempt.run_id,
        lease_s=request.options.lease_s,
        is_over=is_over,
    )


def claims_directory(output_directory: Path, attempt: Attempt) -> Path:
    """Return where the claims of an attempt lie."""
    return output_directory / CLAIMS_DIRECTORY / Path(attempt_file_name(attempt.number)).stem
