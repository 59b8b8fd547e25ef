"""Another policy, of which a subclass changes when and about what it is asked."""

from collections.abc import Sequence

import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, stated_model


class PolicyWrapper(PolicyBase[None]):
    """Passes on everything but the question for an action, which a subclass defines.

    Args:
        policy: The other policy.

    Attributes:
        asked: The other policy.
    """

    def __init__(self, policy: PolicyBase) -> None:
        super().__init__()
        self.asked = policy

    def finished(self) -> torch.Tensor | None:
        """Return which env slots have finished, None for none. Shape: (num_envs,), bool."""
        return self.asked.finished()

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Tell the other policy of the episodes that begin."""
        self.asked.start_episodes(env, starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Tell the other policy of the episodes that have ended."""
        self.asked.end_episodes(env, env_ids)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the other policy for the named env slots."""
        self.asked.reset(env_ids)

    def set_task_description(self, task_description: str | None) -> str | None:
        """Give the other policy its instruction, and return the one that it will follow."""
        return self.asked.set_task_description(task_description)

    def has_length(self) -> bool:
        """Whether the other policy determines the length of a run."""
        return self.asked.has_length()

    def length(self) -> int | None:
        """What the other policy says."""
        return self.asked.length()

    def num_episodes(self) -> int | None:
        """What the other policy says."""
        return self.asked.num_episodes()

    @property
    def is_remote(self) -> bool:
        """Whether the other policy's network runs in another process."""
        return self.asked.is_remote

    def stated_model(self) -> str | None:
        """The description of its model by the other policy's server."""
        return stated_model(self.asked)

    def can_play(self, episode_index: int) -> bool:
        """Whether the other policy can play an episode."""
        return self.asked.can_play(episode_index)

    def close(self) -> None:
        """Close the other policy."""
        self.asked.close()
