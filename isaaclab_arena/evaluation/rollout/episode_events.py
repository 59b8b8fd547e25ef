"""Ask environments whether episodes are solved at their start, and what happened in those that were played."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from isaaclab_arena.evaluation.rollout.endings import Ending, solved_before
from isaaclab_arena.interfaces.environment import Environment, JudgesStarts, TellsEvents
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


def with_events(environment: Environment, records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return episodes that have just ended with what happened in them; nothing of errors, and where nobody tells."""
    told = [record for record in records if record.outcome not in (Outcome.ERROR, None)]
    if not told or not isinstance(environment, TellsEvents):
        return list(records)
    solved = [record.success is True for record in told]
    events = environment.episode_events([record.env_id for record in told], solved)
    found = {record.env_id: each for record, each in zip(told, events, strict=True)}
    return [replace(record, events=found.get(record.env_id)) for record in records]
