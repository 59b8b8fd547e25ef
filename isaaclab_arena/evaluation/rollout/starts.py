"""Start episodes: their conditions, instruction and env slot, and which control steps are made meanwhile."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.evaluation.rollout.attempts import begins_resets
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart, WatchedStart
from isaaclab_arena.interfaces.recordable import Restorable


def next_starts(environment: Environment, env_ids: Iterable[int], pending: Iterator[Episode]) -> list[EpisodeStart]:
    """Return the starts of the next episodes, one for each env slot as long as there are episodes.

    They have the task's words, until `StartingEpisodes` gives them their own.

    Args:
        environment: Draws what episodes start from.
        env_ids: Env slots that are free.
        pending: Episodes that have yet to begin, in order; no more are taken than there are env slots.
    """
    starts = []
    words = environment.task_description
    for env_id, episode in zip(env_ids, pending, strict=False):
        conditions = _conditions(environment, episode)
        start = WatchedStart(env_id=env_id, episode=episode, conditions=conditions, language_instruction=words)
        starts.append(start)
    return starts


class StartingEpisodes:
    """Episodes whose env slots are being reset, and that begin when it is their turn.

    An environment whose resets are made elsewhere makes control steps in the meantime. Their number is fixed, so that
    what comes out does not depend on how long a reset takes.

    Args:
        environment: Where they start.
        instruction: What the policy is told in every episode, None where the environment says it for each.
        may_overlap: Whether other episodes may make steps meanwhile.
    """

    def __init__(self, environment: Environment, instruction: str | None, *, may_overlap: bool) -> None:
        self._environment, self._instruction = environment, instruction
        self._elsewhere = environment if may_overlap and begins_resets(environment) else None
        self._waiting: list[_Waiting] = []

    def begin(self, starts: Sequence[EpisodeStart], *, num_steps: int) -> None:
        """Begin resets.

        Args:
            starts: Those of `next_starts`.
            num_steps: Control steps that were made so far.
        """
        overlaps = self._elsewhere is not None and all(start.episode.start_state is None for start in starts)
        if self._elsewhere is not None and overlaps:
            self._elsewhere.begin_reset(_env_ids(self._environment, starts), [start.conditions for start in starts])
            num_steps += self._elsewhere.steps_while_starting
        self._waiting.append(_Waiting(starts=starts, turn=num_steps, is_begun=overlaps))

    def are_due(self, *, num_steps: int, num_running: int) -> bool:
        """Return whether it is the turn of episodes to begin; the first ones need not wait where no other one runs."""
        return any(each.turn <= num_steps for each in self._waiting) or bool(self._waiting and not num_running)

    def finish(self, *, num_steps: int) -> tuple[list[EpisodeStart], Observation]:
        """Wait for the resets of the episodes that are due.

        Returns:
            Their starts with what the policy is told, ascending by env slot, and the observation of all env slots.

        Raises:
            ArenaError: If a state that an episode carries, or the conditions beside it, do not fit the environment.
        """
        turn = max(num_steps, min(each.turn for each in self._waiting))
        due = [each for each in self._waiting if each.turn <= turn]
        self._waiting = [each for each in self._waiting if each.turn > turn]
        observation: Observation = {}
        for each in due:
            observation = self._finished(each)
        starts = sorted((start for each in due for start in each.starts), key=lambda start: start.env_id)
        words = [self._instruction or self._environment.instruction(start.conditions) for start in starts]
        told = zip(starts, words, strict=True)
        return [dataclasses.replace(start, language_instruction=each) for start, each in told], observation

    def close(self) -> None:
        """Wait for all resets that were begun: their answers must not be taken for those of other requests."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.is_begun:
                # Whoever closes now has a reason of its own, which counts more than what becomes of these episodes.
                with suppress(Exception):
                    self._finished(each)

    def _finished(self, waiting: "_Waiting") -> Observation:
        if self._elsewhere is None or not waiting.is_begun:
            return _placed(self._environment, waiting.starts)
        return self._elsewhere.finish_reset([start.env_id for start in waiting.starts])


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Episodes that are to begin together.

    Attributes:
        starts: Their starts.
        turn: How many control steps have been made when it is their turn.
        is_begun: Whether their resets were begun.
    """

    starts: Sequence[EpisodeStart]
    turn: int
    is_begun: bool


def _placed(environment: Environment, starts: Sequence[EpisodeStart]) -> Observation:
    """Reset env slots; one whose episode carries a state gets it, bit for bit, where that is `Restorable`."""
    env_ids = _env_ids(environment, starts)
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


def _env_ids(environment: Environment, starts: Sequence[EpisodeStart]) -> torch.Tensor:
    slots = torch.tensor([start.env_id for start in starts], dtype=torch.int64)
    return slots.to(environment.device, non_blocking=True)


def _conditions(environment: Environment, episode: Episode) -> Conditions:
    if episode.saved_conditions is not None:
        return episode.saved_conditions
    drawn = environment.draw_conditions(episode.conditions_generator())
    return environment.vary_conditions(drawn, episode)
