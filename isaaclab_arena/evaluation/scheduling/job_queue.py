"""The queue from which a rank takes its jobs, and the queue of jobs that are settled before the start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, remaining_episodes
from isaaclab_arena.evaluation.plan.episode_supply import EpisodeSupply, FixedShare
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.scheduling.pieces import split_shares, unfinished
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.storage.run.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class AssignedJob:
    """A job that this rank is to work on.

    Attributes:
        job: The job.
        supply: Which of its episodes.
        num_episodes: How many those are, None where that is not known beforehand.
        observers: Have to be told what becomes of the episodes, after they are committed.
    """

    job: Job
    supply: EpisodeSupply
    num_episodes: int | None
    observers: tuple[Observer, ...] = ()


class JobQueue(Protocol):
    """The jobs of one rank, one after the other."""

    def next_job(self) -> AssignedJob | None:
        """Return what to do next, None when nothing is left for this rank. May wait for other ranks."""
        ...

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Say that the rank has left the job it was given last."""
        ...


class FixedQueue:
    """Jobs that were assigned before the start.

    Args:
        assigned: The jobs, in order.
    """

    def __init__(self, assigned: Sequence[AssignedJob]) -> None:
        self._pending = iter(assigned)

    def next_job(self) -> AssignedJob | None:
        """Return the next job, None at the end."""
        return next(self._pending, None)

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Do nothing: no other rank will take the job."""


def jobs_of_rank(jobs: Sequence[Job], attempt: Attempt, *, rank: int, split: bool) -> list[AssignedJob]:
    """Return what a rank has to do where that is settled before the start; every rank settles it alike.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, and how many ranks share it.
        rank: Which rank.
        split: Whether all ranks share each job whose length is known. Otherwise rank ``r`` has the jobs with
            ``job_index % world_size == r``.
    """
    assigned = []
    for index, finished in unfinished(jobs, attempt).items():
        first_rank = index % attempt.world_size
        num_episodes = jobs[index].config.num_episodes
        left = () if num_episodes is None else remaining_episodes(num_episodes, finished)
        if split and left:
            share = split_shares(left, attempt.world_size, first_rank=first_rank)[rank]
            if share:
                assigned.append(_assigned(jobs[index], finished, share, count_episodes(share)))
        elif rank == first_rank:
            # Also a job whose episodes have all finished: it may still owe its report.
            assigned.append(
                _assigned(jobs[index], finished, None, None if num_episodes is None else count_episodes(left))
            )
    return assigned


def _assigned(job: Job, finished: EpisodeRanges, share: EpisodeRanges | None, num_episodes: int | None) -> AssignedJob:
    return AssignedJob(job=job, supply=FixedShare(finished=finished, share=share), num_episodes=num_episodes)
