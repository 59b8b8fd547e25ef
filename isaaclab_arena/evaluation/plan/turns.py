"""Find the jobs that take turns because a run compares them, and cut their episodes into rounds: pure functions."""

from collections.abc import Iterable, Mapping, Sequence

from isaaclab_arena.config.schema import Question, compared_groups
from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.evaluation.plan.job import Job


def jobs_taking_turns(jobs: Sequence[Job], questions: tuple[Question, ...]) -> Mapping[int, tuple[int, ...]]:
    """Return the indices of the jobs with which each compared job takes turns, itself included, by its index.

    Args:
        jobs: Every job of the run.
        questions: What is asked of them.
    """
    indices = {job.config.name: job.config.index for job in jobs}
    groups = (tuple(sorted(indices[name] for name in group)) for group in compared_groups(questions))
    return {index: group for group in groups for index in group}


def home_index(index: int, turns: Mapping[int, tuple[int, ...]]) -> int:
    """Return the index by which a job's rank goes: that of the first job with which it takes turns."""
    return min(turns.get(index, (index,)))


def round_size(jobs: Iterable[Job], *, num_ranks: int) -> int:
    """Return how many episodes of each job a round has: one for every env slot of the ranks that share it.

    Args:
        jobs: The jobs that take turns.
        num_ranks: How many ranks share them.
    """
    return max(job.config.num_envs for job in jobs) * num_ranks


def rounds_of(remaining: EpisodeRanges, size: int) -> dict[int, EpisodeRanges]:
    """Return the episodes of a job by their round, in order; rounds without an episode are left out.

    Args:
        remaining: Episodes to run.
        size: Episodes of a round. Round r has those with an index from r * size up to (r + 1) * size.
    """
    rounds: dict[int, EpisodeRanges] = {}
    for begin, end in remaining:
        for number in range(begin // size, (end - 1) // size + 1):
            part = (max(begin, number * size), min(end, (number + 1) * size))
            rounds[number] = (*rounds.get(number, ()), part)
    return rounds
