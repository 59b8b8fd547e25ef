"""Judge success in an environment that has only rewards and an ``info``."""

from dataclasses import dataclass

from isaaclab_arena.environments.gym.worker.env_slot import SlotStep
from isaaclab_arena.errors import ArenaError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class SuccessRule:
    """Reads success from a step; with neither attribute, success is not measured.

    Attributes:
        key: Entry of ``info`` that is true when the task is solved.
        return_threshold: Return from which on an episode is a success.
        end_on_success: Whether an episode ends at the first step whose ``key`` is true; otherwise its last step counts.
    """

    key: str | None = None
    return_threshold: float | None = None
    end_on_success: bool = True

    @property
    def is_measured(self) -> bool:
        """Whether success is known at all."""
        return self.key is not None or self.return_threshold is not None

    @property
    def ends_episode(self) -> bool:
        """Whether success ends an episode. A return may still fall again, so its threshold does not."""
        return self.key is not None and self.end_on_success

    def judge(self, step: SlotStep, episode_return: float, *, over: bool) -> bool:
        """Return whether the task is solved as of a step.

        Args:
            step: The step.
            episode_return: Sum of the rewards so far.
            over: Whether the episode ends with this step.

        Raises:
            ArenaError: If the key is neither true nor false, or missing when the episode ends.
        """
        if self.return_threshold is not None:
            return episode_return >= self.return_threshold
        if self.key is None:
            return False
        if self.key not in step.info:
            if over:
                hint = did_you_mean(self.key, step.info_names) or "; it is empty"
                raise ArenaError(f"success_key: the info of an episode's last step has no '{self.key}'{hint}")
            return False
        value = step.info[self.key]
        if value not in (0.0, 1.0):
            raise ArenaError(f"success_key: info['{self.key}'] is {value:g}, neither true nor false")
        return value == 1.0
