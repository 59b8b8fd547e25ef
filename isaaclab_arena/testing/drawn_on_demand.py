"""An environment that shows no picture but those that were announced, made of one that always shows all."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, EnvironmentWrapper, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.pictures import CAMERAS, SomePictures


class DrawnOnDemand(EnvironmentWrapper):
    """Another environment, as one that has `PicturesOnDemand`: a policy or an observer sees what was announced.

    Args:
        real: The environment. Its group ``camera_obs`` holds nothing but tensors.
    """

    # Recorded episodes are not started again.
    restore = None

    def __init__(self, real: Environment) -> None:
        super().__init__(real)
        self.pictures_drawn = 0
        self._announced: Sequence[int] | None = None
        self._outdated = np.ones(real.num_envs, bool)
        self._kept: dict[str, torch.Tensor] = {}

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """See `PicturesOnDemand`."""
        self._announced = env_ids

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """See `Environment.reset`."""
        return self._shown(self.real.reset(env_ids, conditions), env_ids.tolist())

    def step(self, action: torch.Tensor) -> Step:
        """See `Environment.step`."""
        step = self.real.step(action)
        return replace(step, observation=self._shown(step.observation, range(self.num_envs)))

    def close(self) -> None:
        """See `Environment.close`."""
        self.real.close()

    def _shown(self, observation: Observation, moved: Sequence[int]) -> Observation:
        announced, self._announced = self._announced, None
        self._outdated[list(moved)] = True
        due = [each for each in (range(self.num_envs) if announced is None else announced) if self._outdated[each]]
        for name, pictures in observation[CAMERAS].items():
            kept = self._kept.setdefault(name, torch.zeros_like(pictures))
            kept[due] = pictures[due]
        self._outdated[due] = False
        self.pictures_drawn += len(due) * len(self._kept)
        places = np.where(self._outdated, -1, np.arange(self.num_envs))
        shown = {name: SomePictures(name, kept.clone(), places.copy()) for name, kept in self._kept.items()}
        if not self._outdated.any():
            return {**observation, CAMERAS: {name: kept.clone() for name, kept in self._kept.items()}}
        return {**observation, CAMERAS: shown}
