"""Start episodes: their conditions, instruction and env slot."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch

from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.recordable import Restorable


def next_starts(environment: Environment, env_ids: Iterable[int], pending: Iterator[Episode]) -> list[EpisodeStart]:
    """Return the starts of the next episodes, one for each env slot as long as there are episodes.

    They have the task's words, until `reset_to` gives them their own.

    Args:
        environment: Draws what episodes start from.
        env_ids: Env slots that are free.
        pending: Episodes that have yet to begin, in order; no more are taken than there are env slots.
    """
    starts = []
    words = environment.task_description
    for env_id, episode in zip(env_ids, pending, strict=False):
        conditions = _conditions(environment, episode)
        start = EpisodeStart(env_id=env_id, episode=episode, conditions=conditions, language_instruction=words)
        starts.append(start)
    return starts


def reset_to(
    environment: Environment, starts: Sequence[EpisodeStart], instruction: str | None
) -> tuple[list[EpisodeStart], Observation]:
    """Put env slots where their episodes start.

    Args:
        environment: Some learn only now what an episode asks for.
        starts: Those of `next_starts`.
        instruction: What the policy is told in every episode, None where the environment says it for each.

    Returns:
        The starts with what the policy is told, and the observation of all slots.

    Raises:
        ArenaError: If a state that an episode carries, or the conditions beside it, do not fit the environment.
    """
    observation = _placed(environment, starts)
    words = [instruction or environment.instruction(start.conditions) for start in starts]
    told = zip(starts, words, strict=True)
    return [dataclasses.replace(start, language_instruction=each) for start, each in told], observation


def _placed(environment: Environment, starts: Sequence[EpisodeStart]) -> Observation:
    """Reset env slots; one whose episode carries a state gets it, bit for bit, where that is `Restorable`."""
    slots = torch.tensor([start.env_id for start in starts], dtype=torch.int64)
    env_ids = slots.to(environment.device, non_blocking=True)
    conditions = [start.conditions for start in starts]
    states = [start.episode.start_state for start in starts]
    if all(state is None for state in states):
        return environment.reset(env_ids, conditions)
    try:
        if isinstance(environment, Restorable):
            return environment.restore(env_ids, conditions, [state or {} for state in states])
        return environment.reset(env_ids, conditions)
    except KeyError as missing:
        raise ArenaError(f"the recorded conditions lack {missing}, which this environment starts from") from missing
    except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        # Their keys are those that this environment knows, their values may be anything.
        raise ArenaError(f"the recorded start does not fit this environment: {first_line(error)}") from error


def _conditions(environment: Environment, episode: Episode) -> Conditions:
    if episode.saved_conditions is not None:
        return episode.saved_conditions
    drawn = environment.draw_conditions(episode.conditions_generator())
    return environment.vary_conditions(drawn, episode)
