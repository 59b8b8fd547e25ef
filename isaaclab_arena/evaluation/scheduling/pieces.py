"""Cuts jobs into the shares and pieces that ranks run: pure functions that every rank evaluates alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, cut, remaining_episodes
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.turns import jobs_taking_turns, round_size, rounds_of
from isaaclab_arena.storage.run.attempts import Attempt

_PIECES_PER_RANK = 8
"""Into how many pieces per rank a job is cut: an eighth of a rank's share is lost at most by an uneven end."""

_PIECES_PER_RANK_AT_MOST = 1000
"""No piece is smaller than this part of a rank's share of the whole run: each one costs two small files."""


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
            smallest = total // (_PIECES_PER_RANK_AT_MOST * attempt.world_size) * attempt.world_size
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
        parts = cut(episodes, _even_sizes(num_episodes, min(world_size, num_episodes)))
        pieces += parts
        rounds += [number] * len(parts)
    return pieces, rounds


def split_shares(remaining: EpisodeRanges, world_size: int, *, first_rank: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into one consecutive share per rank, sizes differing by at most one.

    Shares go round from ``first_rank``, and the longer ones come first. So many short jobs do not all burden the
    same rank, and a job of one episode stays where round robin would have put it.

    Args:
        remaining: Episodes to run.
        world_size: Number of ranks.
        first_rank: The rank that gets the first share: ``job_index % world_size``.

    Returns:
        The episodes of each rank, by rank; empty where there are fewer episodes than ranks.
    """
    shares = cut(remaining, _even_sizes(count_episodes(remaining), world_size))
    return [shares[(rank - first_rank) % world_size] for rank in range(world_size)]


def pieces_of(remaining: EpisodeRanges, *, total_remaining: int, world_size: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into the consecutive pieces that ranks claim one at a time.

    There are eight per rank, of at least one episode. In a run of many jobs they are larger, up to a whole job: never
    smaller than a thousandth of a rank's share of the run, so that thousands of jobs do not make millions of claims.

    Args:
        remaining: Episodes to run.
        total_remaining: Episodes to run in all jobs.
        world_size: Number of ranks.
    """
    num_episodes = count_episodes(remaining)
    smallest = max(1, total_remaining // (_PIECES_PER_RANK_AT_MOST * world_size))
    num_pieces = min(_PIECES_PER_RANK * world_size, max(1, num_episodes // smallest))
    return cut(remaining, _even_sizes(num_episodes, num_pieces)) if num_episodes else []


def _even_sizes(total: int, num_parts: int) -> list[int]:
    size, longer = divmod(total, num_parts)
    return [size + 1] * longer + [size] * (num_parts - longer)
