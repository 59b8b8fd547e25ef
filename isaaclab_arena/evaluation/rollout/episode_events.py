"""Ask environments that tell events what happened in episodes, and make errors of those solved at their start."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from isaaclab_arena.interfaces.environment import Environment, TellsEvents
from isaaclab_arena.interfaces.episode import SOLVED_AT_START, EpisodeEvents, EpisodeRecord, Outcome
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
    return [_told(record, found.get(record.env_id)) for record in records]


def _told(record: EpisodeRecord, events: EpisodeEvents | None) -> EpisodeRecord:
    """Return an episode with what happened in it; as an error, and said so, if it was solved before it began."""
    if events is None or SOLVED_AT_START not in events.seen:
        return replace(record, events=events)
    error = (
        f"the task '{record.language_instruction}' was solved at the start, before the policy had done anything; "
        "that is an error of the task, and says nothing of the policy"
    )
    episode = record.episode
    _LOG.error("job '%s', episode %d, seed %d: %s", episode.job, episode.episode_index, episode.seed, error)
    return replace(record, outcome=Outcome.ERROR, success=None, error=error)
