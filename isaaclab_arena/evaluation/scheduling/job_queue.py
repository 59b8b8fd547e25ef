"""The queue from which a rank takes its jobs, and the queue of jobs that are settled before the start."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from isaaclab_arena.config.schema import Question
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, remaining_episodes
from isaaclab_arena.evaluation.plan.episode_supply import EpisodeSupply, FixedShare
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.turns import home_index, jobs_taking_turns, round_size, rounds_of
from isaaclab_arena.evaluation.scheduling.divided_jobs import unfinished
from isaaclab_arena.evaluation.scheduling.pieces import split_shares
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
        assigned: The jobs, in order; a job that takes turns with others is there once for each of its turns.
        is_over: Whether no further episode of a job is needed, by its name.
    """

    def __init__(self, assigned: Iterable[AssignedJob], is_over: Callable[[str], bool] = lambda _: False) -> None:
        self._pending = iter(assigned)
        self._is_over = is_over
        self._begun: set[str] = set()
        self._failed: set[str] = set()

    def next_job(self) -> AssignedJob | None:
        """Return the next job that has something left to do, None at the end.

        The first turn of a job is never left out: the job may owe its report.
        """
        for assigned in self._pending:
            name = assigned.job.config.name
            if name not in self._begun:
                self._begun.add(name)
                return assigned
            if name not in self._failed and not self._is_over(name):
                return assigned
        return None

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Leave out the other turns of a job that has failed."""
        if failed:
            self._failed.add(job.config.name)


def jobs_of_rank(
    jobs: Sequence[Job],
    attempt: Attempt,
    *,
    rank: int,
    split: bool,
    questions: tuple[Question, ...] = (),
) -> list[AssignedJob]:
    """Return what a rank has to do where that is settled before the start; every rank settles it alike.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, and how many ranks share it.
        rank: Which rank.
        split: Whether all ranks share each job whose length is known. Otherwise rank ``r`` has the jobs with
            ``job_index % world_size == r``.
        questions: What is asked of the jobs. Those that are compared are on the same rank and take turns.
    """
    turns, left = jobs_taking_turns(jobs, questions), unfinished(jobs, attempt)
    assigned = []
    for index, finished in left.items():
        members = [member for member in turns.get(index, ()) if member in left]
        placed = _Placed(
            rank=rank,
            first_rank=home_index(index, turns) % attempt.world_size,
            world_size=attempt.world_size,
            split=split,
        )
        if not members:
            assigned += _whole_job(jobs[index], finished, placed)
        elif index == members[0]:
            assigned += _turns(jobs, {member: left[member] for member in members}, placed)
    return assigned


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """Where jobs run.

    Attributes:
        rank: The rank in question.
        first_rank: The rank that runs them, or has the first share.
        world_size: Number of ranks.
        split: Whether all ranks share them.
    """

    rank: int
    first_rank: int
    world_size: int
    split: bool

    def share_of(self, episodes: EpisodeRanges) -> EpisodeRanges:
        """Return which of the episodes the rank runs."""
        if self.split and episodes:
            return split_shares(episodes, self.world_size, first_rank=self.first_rank)[self.rank]
        return episodes if self.rank == self.first_rank else ()


def _whole_job(job: Job, finished: EpisodeRanges, placed: _Placed) -> Iterator[AssignedJob]:
    """Yield what a rank has to do of a job that takes no turns."""
    num_episodes = job.config.num_episodes
    left = () if num_episodes is None else remaining_episodes(num_episodes, finished)
    if placed.split and left:
        share = placed.share_of(left)
        if share:
            yield _assigned(job, finished, share, count_episodes(share))
    elif placed.rank == placed.first_rank:
        # Also a job whose episodes have all finished: it may still owe its report.
        yield _assigned(job, finished, None, None if num_episodes is None else count_episodes(left))


def _turns(jobs: Sequence[Job], group: Mapping[int, EpisodeRanges], placed: _Placed) -> Iterator[AssignedJob]:
    """Yield what a rank has to do of jobs that take turns: of each one what it has in a round, then the next round.

    Args:
        jobs: Every job of the run.
        group: The finished episodes of those that take turns, by their index.
        placed: Whether all ranks share each round; otherwise one rank runs them all.
    """
    size = round_size((jobs[index] for index in group), num_ranks=placed.world_size if placed.split else 1)
    left = {index: remaining_episodes(jobs[index].config.num_episodes or 0, done) for index, done in group.items()}
    rounds = {index: rounds_of(remaining, size) for index, remaining in left.items()}
    for index, remaining in left.items():
        if not remaining and placed.rank == placed.first_rank:
            yield _assigned(jobs[index], group[index], (), 0)
    for number in sorted({number for each in rounds.values() for number in each}):
        for index, each in rounds.items():
            share = placed.share_of(each.get(number, ()))
            if share:
                yield _assigned(jobs[index], (), share, count_episodes(share))


def _assigned(job: Job, finished: EpisodeRanges, share: EpisodeRanges | None, num_episodes: int | None) -> AssignedJob:
    return AssignedJob(job=job, supply=FixedShare(finished=finished, share=share), num_episodes=num_episodes)
