"""Ask environments that tell events what happened in episodes, and say which were solved at their start."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from isaaclab_arena.interfaces.environment import Environment, TellsEvents
from isaaclab_arena.interfaces.episode import SOLVED_AT_START, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart

_LOG = logging.getLogger(__name__)


def begin_events(environment: Environment, starts: Sequence[EpisodeStart]) -> None:
    """Have what happens in episodes kept from their start on, where the environment tells."""
    if isinstance(environment, TellsEvents):
        environment.begin_events([start.env_id for start in starts])


def with_events(environment: Environment, records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return episodes that have just ended with what happened in them; nothing of errors, and where nobody tells."""
    told = [record for record in records if record.outcome not in (Outcome.ERROR, None)]
    if not told or not isinstance(environment, TellsEvents):
        return list(records)
    solved = [record.success is True for record in told]
    events = environment.episode_events([record.env_id for record in told], solved)
    found = {record.env_id: each for record, each in zip(told, events, strict=True)}
    records = [replace(record, events=found.get(record.env_id)) for record in records]
    for record in records:
        if record.events is not None and SOLVED_AT_START in record.events.seen:
            _tell_solved_at_start(record)
    return records


def _tell_solved_at_start(record: EpisodeRecord) -> None:
    _LOG.warning(
        "job '%s', episode %d, seed %d: the task '%s' was solved at the start, before the policy had done anything. "
        "That is an error of the task: the episode says nothing of the policy",
        record.episode.job,
        record.episode.episode_index,
        record.episode.seed,
        record.language_instruction,
    )
