"""Divides the jobs of an attempt into the pieces that ranks claim, the same on every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isaaclab_arena.config.schema import JobStatus, Question
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, cut, remaining_episodes
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.turns import jobs_taking_turns, round_size, rounds_of
from isaaclab_arena.evaluation.scheduling.pieces import PIECES_PER_RANK_AT_MOST, even_sizes, pieces_of
from isaaclab_arena.storage.run.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class DividedJob:
    """A job as ranks claim it.

    Attributes:
        job: The job.
        finished: Episodes that were finished before.
        pieces: The episodes of each piece, consecutive; empty for a job that owes nothing but its report, None for a
            job whose episodes are not known beforehand, which is one piece.
        takes_turns_with: Indices of the jobs with which it takes turns because they are compared, its own included.
        rounds: The round of each piece of a job that takes turns.
    """

    job: Job
    finished: EpisodeRanges
    pieces: tuple[EpisodeRanges | None, ...]
    takes_turns_with: tuple[int, ...] = ()
    rounds: tuple[int, ...] = ()

    def round_of(self, piece: int) -> int:
        """Return the round of a piece, 0 in a job that takes no turns."""
        return self.rounds[piece] if self.rounds else 0

    @property
    def index(self) -> int:
        """The job's position in the file."""
        return self.job.config.index

    @property
    def owes_only_report(self) -> bool:
        """Whether all its episodes have finished, and nothing but its report is left."""
        return self.pieces == ((),)

    @cached_property
    def num_episodes(self) -> tuple[int, ...]:
        """How many episodes each piece has, 0 where they are not known."""
        return tuple(count_episodes(piece or ()) for piece in self.pieces)

    @cached_property
    def environment_key(self) -> str:
        """Equal for jobs that can use the same environment."""
        return self.job.environment_key

    @property
    def kind(self) -> str:
        """Equal for jobs that can use the same environment and policy."""
        return f"{self.environment_key} {self.job.policy_key}"


def unfinished(jobs: Sequence[Job], attempt: Attempt) -> Mapping[int, EpisodeRanges]:
    """Return the finished episodes of each job that an attempt works on, by the job's index, in order of the file."""
    finished = {work.job: work.finished for work in attempt.jobs}
    pending = (job.config for job in jobs if job.config.status is JobStatus.PENDING and job.config.name in finished)
    return {config.index: finished[config.name] for config in pending}


def divided_jobs(jobs: Sequence[Job], attempt: Attempt, questions: tuple[Question, ...] = ()) -> list[DividedJob]:
    """Return the jobs of an attempt cut into pieces, the same on every rank.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, and how many ranks share it.
        questions: What is asked of the jobs; those that are compared take turns.
    """
    turns = jobs_taking_turns(jobs, questions)
    finished_before = unfinished(jobs, attempt)
    lengths = {index: jobs[index].config.num_episodes for index in finished_before}
    remaining = {
        index: None if length is None else remaining_episodes(length, finished_before[index])
        for index, length in lengths.items()
    }
    total = sum(count_episodes(left) for left in remaining.values() if left)
    divided = []
    for index, left in remaining.items():
        group, rounds = turns.get(index, ()), []
        if left and group:
            smallest = total // (PIECES_PER_RANK_AT_MOST * attempt.world_size) * attempt.world_size
            size = max(smallest, round_size((jobs[each] for each in group), num_ranks=attempt.world_size))
            pieces, rounds = _pieces_of_rounds(left, size, world_size=attempt.world_size)
        elif left:
            pieces = pieces_of(left, total_remaining=total, world_size=attempt.world_size)
        else:
            pieces = [left]
        divided.append(
            DividedJob(
                job=jobs[index],
                finished=finished_before[index],
                pieces=tuple(pieces),
                takes_turns_with=group,
                rounds=tuple(rounds),
            )
        )
    return divided


def _pieces_of_rounds(
    remaining: EpisodeRanges, size: int, *, world_size: int
) -> tuple[list[EpisodeRanges | None], list[int]]:
    """Return the pieces of a job that takes turns, one for each rank in a round, and the round of each."""
    pieces: list[EpisodeRanges | None] = []
    rounds = []
    for number, episodes in rounds_of(remaining, size).items():
        num_episodes = count_episodes(episodes)
        parts = cut(episodes, even_sizes(num_episodes, min(world_size, num_episodes)))
        pieces += parts
        rounds += [number] * len(parts)
    return pieces, rounds
