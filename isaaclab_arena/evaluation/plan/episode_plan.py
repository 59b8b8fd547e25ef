"""Plan a job's episodes and their length, from the job or else from its policy."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, takewhile

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.episode_ranges import split_evenly
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.plan.episode_supply import EpisodeSupply
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.policy import PolicyBase


def with_length(config: JobConfig, policy: PolicyBase) -> JobConfig:
    """Return a job with its ``num_episodes`` or ``num_steps``: its own, else what its policy says.

    Raises:
        ConfigError: If neither says it, or the policy has nothing to play in one of the episodes.
    """
    num_steps, num_episodes = config.num_steps, config.num_episodes
    if num_steps is None and num_episodes is None:
        num_episodes = policy.num_episodes()
        if num_episodes is not None and config.max_episodes is not None:
            num_episodes = min(num_episodes, config.max_episodes)
    if num_steps is None and num_episodes is None and policy.has_length():
        num_steps = policy.length()
    if num_steps is None and num_episodes is None:
        raise ConfigError(
            f"job '{config.name}' gives neither num_episodes nor num_steps, "
            f"and policy '{config.policy_type}' has no length of its own"
        )
    beyond = next((index for index in range(num_episodes or 0) if not policy.can_play(index)), None)
    if beyond is not None:
        raise ConfigError(
            f"job '{config.name}' asks for {num_episodes} episodes, "
            f"but policy '{config.policy_type}' has nothing to play in episode {beyond}"
        )
    return replace(config, num_episodes=num_episodes, num_steps=num_steps)


def indices_of_rebuild(config: JobConfig, num_episodes: int, *, rebuild: int, supply: EpisodeSupply) -> Iterator[int]:
    """Return the episodes of one rebuild that this rank is to run, in order.

    Args:
        config: The job.
        num_episodes: Episodes over all rebuilds and ranks.
        rebuild: Which rebuild, from 0.
        supply: Which episodes this rank is to run.
    """
    return supply.take(split_evenly(num_episodes, config.num_rebuilds)[rebuild])


def indices_that_start(job: Job, policy: PolicyBase, *, started: int, supply: EpisodeSupply) -> Iterator[int]:
    """Return the episodes of one rebuild of a job that is limited by steps; without end if nothing else ends them.

    Args:
        job: The job.
        policy: Says which episodes it can play.
        started: Episodes that earlier rebuilds have started.
        supply: Says when no further one is needed.
    """
    ends = [] if job.saved_conditions is None else [len(job.saved_conditions)]
    if job.config.max_episodes is not None:
        ends.append(job.config.max_episodes)
    indices = range(started, min(ends)) if ends else count(started)
    return takewhile(lambda index: not supply.ends_early() and policy.can_play(index), indices)


def beginning(job: Job, indices: Iterable[int], supply: EpisodeSupply) -> Iterator[Episode]:
    """Yield the episodes of a job by their indices, each when it is about to begin, which the supply is told."""
    for index in indices:
        supply.begin(index)
        yield episode_of(job, index)


def episode_of(job: Job, episode_index: int) -> Episode:
    """Return an episode of a job by its index."""
    config, saved = job.config, job.saved_conditions
    return Episode(
        job=config.name,
        episode_index=episode_index,
        seed=config.seed,
        conditions_seed=config.placement_seed,
        saved_conditions=None if saved is None else saved[episode_index],
    )
