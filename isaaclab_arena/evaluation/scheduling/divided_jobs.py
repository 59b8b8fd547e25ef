"""Jobs cut into the pieces that ranks claim, alike on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from isaaclab_arena.distributed.assignment import pieces_of
from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, remaining_episodes
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.scheduling.selection import WorkSize
from isaaclab_arena.evaluation.scheduling.work_queue import unfinished
from isaaclab_arena.storage.run.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class DividedJob:
    """A job as ranks claim it.

    Attributes:
        job: The job.
        pieces: The episodes of each piece, consecutive; empty for a job that owes nothing but its report, None for a
            job whose episodes are not known beforehand, which is one piece.
        finished: Episodes that were finished before.
        whole: How much there is to do where the episodes are not known.
        environment_key: Equal for jobs that can use the same environment.
        kind: Equal for jobs that can use the same environment and policy.
    """

    job: Job
    pieces: tuple[EpisodeRanges | None, ...]
    finished: EpisodeRanges
    whole: WorkSize
    environment_key: str
    kind: str

    @property
    def index(self) -> int:
        """The job's position in the file."""
        return self.job.config.index

    @cached_property
    def num_episodes(self) -> tuple[int, ...]:
        """How many episodes each piece has, 0 where they are not known."""
        return tuple(count_episodes(piece or ()) for piece in self.pieces)


def divided_jobs(jobs: Sequence[Job], attempt: Attempt, *, split_jobs: bool) -> list[DividedJob]:
    """Return the jobs of an attempt cut into pieces, the same on every rank.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, and how many ranks share it.
        split_jobs: Whether jobs of known length are cut; otherwise each is one piece.
    """
    remaining: dict[int, EpisodeRanges | None] = {}
    finished_before = unfinished(jobs, attempt)
    for index, finished in finished_before.items():
        num_episodes = jobs[index].config.num_episodes
        remaining[index] = None if num_episodes is None else remaining_episodes(num_episodes, finished)
    total = sum(count_episodes(left) for left in remaining.values() if left)
    divided = []
    for index, left in remaining.items():
        job = jobs[index]
        pieces: Sequence[EpisodeRanges | None] = (left,)
        if split_jobs and left:
            pieces = pieces_of(left, total_remaining=total, world_size=attempt.world_size)
        environment_key = job.environment_key
        divided.append(
            DividedJob(
                job=job,
                pieces=tuple(pieces),
                finished=finished_before[index],
                whole=_size_of_whole(job),
                environment_key=environment_key,
                kind=f"{environment_key} {job.policy_key}",
            )
        )
    return divided


def _size_of_whole(job: Job) -> WorkSize:
    config = job.config
    if config.num_steps is not None:
        return WorkSize(env_steps=config.num_steps * config.num_envs * config.num_rebuilds)
    # Only the policy knows how much it is; an episode in every row is a guess.
    return WorkSize(episodes=config.num_envs)
