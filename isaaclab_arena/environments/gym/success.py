"""Judge success in an environment that has only rewards and an ``info``."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.environments.gym.env_slots import SlotSteps
from isaaclab_arena.errors import ArenaError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class SuccessRule:
    """Reads success from a step; with neither attribute, success is not measured.

    Attributes:
        key: Entry of ``info`` that is true when the task is solved; names of nested ones are joined with dots.
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

    def is_met_by(self, info: Mapping[str, float]) -> bool:
        """Return whether the task is solved where an episode starts, given what the ``info`` of its reset says."""
        return self.ends_episode and self.key is not None and info.get(self.key) == 1.0

    def judge(self, steps: SlotSteps, returns: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Return in which env slots the task is solved as of a step. Shape: (num_envs,), bool.

        Args:
            steps: The step.
            returns: Sum of the rewards so far. Shape: (num_envs,), float64.
            moved: Env slots that made the step; nothing is solved in others. Shape: (num_envs,), bool.

        Raises:
            ArenaError: If the key is neither true nor false, or missing when an episode ends.
        """
        if self.return_threshold is not None:
            return moved & (returns >= self.return_threshold)
        if self.key is None:
            return np.zeros_like(moved)
        is_there, values = steps.entry(self.key)
        missing = moved & ~is_there
        if missing.any() and (missing := missing & (steps.terminated | steps.truncated)).any():
            names = steps.info_names.get(int(np.argmax(missing)), ())
            hint = did_you_mean(self.key, names) or "; it is empty"
            raise ArenaError(f"success_key: the info of an episode's last step has no '{self.key}'{hint}")
        is_there &= moved
        unclear = is_there & (values != 0.0) & (values != 1.0)
        if unclear.any():
            value = values[np.argmax(unclear)]
            raise ArenaError(f"success_key: info['{self.key}'] is {value:g}, neither true nor false")
        return is_there & (values == 1.0)
