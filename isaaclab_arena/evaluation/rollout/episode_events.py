"""Find episodes that are over at their start, solved or spoiled, and ask what happened in those that were played."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isaaclab_arena.evaluation.rollout.endings import Ending, bad_start, solved_before
from isaaclab_arena.evaluation.rollout.soundness import unsound_entry, unsound_slots
from isaaclab_arena.interfaces.environment import Environment, JudgesStarts, Observation, TellsBadStarts, TellsEvents
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart

_LOG = logging.getLogger(__name__)


def begin_events(environment: Environment, starts: Sequence[EpisodeStart]) -> None:
    """Have what happens in episodes kept from their start on, where the environment tells."""
    if isinstance(environment, TellsEvents):
        environment.begin_events([start.env_id for start in starts])


def solved_starts(environment: Environment, starts: Sequence[EpisodeStart]) -> dict[int, Ending]:
    """Return how episodes end whose goal is met where they were just reset to, by env slot, and say so in the log.

    None does where the environment cannot judge without a step.
    """
    if not isinstance(environment, JudgesStarts):
        return {}
    found = {}
    for start, solved in zip(starts, environment.solved_at_start([start.env_id for start in starts]), strict=True):
        if solved:
            found[start.env_id] = ending = solved_before(start.language_instruction)
            episode = start.episode
            told = episode.job, episode.episode_index, episode.seed, ending.error
            _LOG.error("job '%s', episode %d, seed %d: %s", *told)
    return found


def bad_starts(environment: Environment, starts: Sequence[EpisodeStart], observation: Observation) -> dict[int, Ending]:
    """Return how episodes end whose reset gave what cannot be shown to a policy, by env slot.

    Args:
        environment: It may tell so itself.
        starts: The episodes that have just begun.
        observation: What all env slots show.
    """
    env_ids = [start.env_id for start in starts]
    unsound = unsound_slots(observation)
    found = [] if unsound is None else np.flatnonzero(unsound.cpu().numpy())
    errors = {env_id: unsound_entry(observation, env_id) for env_id in env_ids if env_id in found}
    if isinstance(environment, TellsBadStarts):
        errors |= environment.start_errors(env_ids)
    return {env_id: bad_start(error) for env_id, error in errors.items()}


def with_events(environment: Environment, records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return episodes that have just ended with what happened in them; nothing of errors, and where nobody tells."""
    told = [record for record in records if record.outcome not in (Outcome.ERROR, None)]
    if not told or not isinstance(environment, TellsEvents):
        return list(records)
    solved = [record.success is True for record in told]
    events = environment.episode_events([record.env_id for record in told], solved)
    found = {record.env_id: each for record, each in zip(told, events, strict=True)}
    return [replace(record, events=found.get(record.env_id)) for record in records]
