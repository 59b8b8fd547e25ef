"""The contract of an observer: recording, video and progress watch the loop without being part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeRecord


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """An episode that begins in an env slot.

    Attributes:
        env_id: The env slot.
        episode: The identity of the episode.
        conditions: The conditions that it starts from.
        language_instruction: The instruction for the policy.
    """

    env_id: int
    episode: Episode
    conditions: Conditions
    language_instruction: str


class WatchedStart(EpisodeStart):
    """An `EpisodeStart` that knows whether its instruction was read: a policy that never reads it cannot follow it."""

    instruction_was_read = False

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and note that the instruction was read."""
        if name == "language_instruction":
            object.__setattr__(self, "instruction_was_read", True)
        return super().__getattribute__(name)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One control step of the batch.

    Attributes:
        running: Env slots in which an episode made this step. Shape: (num_envs,), bool.
        num_running: Their number, known without waiting for a GPU.
        observation: The observation before the action.
        action: The policy's action. Shape: (num_envs, action_dim).
        step: The result of the action.
    """

    running: torch.Tensor
    num_running: int
    observation: Observation
    action: torch.Tensor
    step: Step


class Observer:
    """Watches a rollout. Every hook does nothing unless overridden, and none may change its arguments.

    Order of calls, for each env slot: ``on_episode_start``, then ``on_step`` once per control step, then
    ``on_episode_end``. A rollout that is cut short ends without ``on_episode_end`` for the episodes under way.

    A job may have several environments. The hooks are called for one of them after the other, always in the same
    thread, and env slots are those of the environment that is named.

    Attributes:
        sees_pictures: Whether it looks at the group ``camera_obs`` of observations, unless `pictures_to_see` says more.
    """

    sees_pictures: bool = True

    def pictures_to_see(self, environment: Environment, starting: Sequence[EpisodeStart]) -> Sequence[int] | None:
        """Return the env slots at whose pictures it looks in the next observation, None for all.

        It gets no other pictures. By default those of all env slots with ``sees_pictures``, else none.

        Args:
            environment: The environment of the env slots.
            starting: Episodes that are about to start; empty before a control step, whose result goes to `on_step`.
        """
        return None if self.sees_pictures else ()

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Called after the env slots of ``starts`` were reset, before the policy acts in them."""

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Called after every control step, before any env slot is reset."""

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Called once per finished episode, after the `on_step` of its last step."""

    def close(self) -> None:
        """Release the observer's resources."""
