"""Which job a rank takes up next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.assignment import assign_jobs, split_shares
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, remaining_episodes
from isaaclab_arena.evaluation.plan.episode_supply import EpisodeSupply, FixedShare
from isaaclab_arena.evaluation.plan.job import Job
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


class WorkQueue(Protocol):
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
        """Nothing follows from it: nobody else will take the job."""


def unfinished(jobs: Sequence[Job], attempt: Attempt) -> Mapping[int, EpisodeRanges]:
    """Return the finished episodes of each job that an attempt works on, by the job's index, in order of the file."""
    finished = {work.job: work.finished for work in attempt.jobs}
    pending = (job.config for job in jobs if job.config.status is JobStatus.PENDING and job.config.name in finished)
    return {config.index: finished[config.name] for config in pending}


def jobs_of_rank(jobs: Sequence[Job], attempt: Attempt, *, rank: int, split_jobs: bool) -> list[AssignedJob]:
    """Return what a rank has to do where that is settled before the start; every rank settles it alike.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, how many ranks share it, and how it is assigned.
        rank: Which rank.
        split_jobs: Whether a job whose length is known is shared by all ranks.

    Raises:
        ConfigError: If the assignment is unknown or leaves a job out.
    """
    world_size = attempt.world_size
    own = set(assign_jobs(attempt.assignment, len(jobs), world_size)[rank])
    assigned = []
    for index, finished in unfinished(jobs, attempt).items():
        num_episodes = jobs[index].config.num_episodes
        if split_jobs and num_episodes is not None:
            left = remaining_episodes(num_episodes, finished)
            # A job whose episodes have all finished may still owe its report.
            share = split_shares(left, world_size, first_rank=index % world_size)[rank] if left else None
            if share or (not left and index in own):
                assigned.append(_assigned(jobs[index], finished, share))
        elif index in own:
            assigned.append(_assigned(jobs[index], finished, None))
    return assigned


def _assigned(job: Job, finished: EpisodeRanges, share: EpisodeRanges | None) -> AssignedJob:
    num_episodes = job.config.num_episodes
    if share is not None:
        num_episodes = count_episodes(share)
    elif num_episodes is not None:
        num_episodes -= count_episodes(finished)
    return AssignedJob(job=job, supply=FixedShare(finished=finished, share=share), num_episodes=num_episodes)
