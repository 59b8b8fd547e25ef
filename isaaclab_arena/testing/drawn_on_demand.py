"""An environment that shows no picture but those that were announced, made of one that always shows all."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.pictures import CAMERAS, SomePictures


class DrawnOnDemand(Environment):
    """Another environment, as one that has `PicturesOnDemand`: a policy or an observer sees what was announced.

    Args:
        real: The environment. Its group ``camera_obs`` holds nothing but tensors.
    """

    def __init__(self, real: Environment) -> None:
        self.real = real
        self.num_envs, self.device, self.reproducible = real.num_envs, real.device, real.reproducible
        self.observation_spec, self.action_spec = real.observation_spec, real.action_spec
        self.task_description, self.max_episode_length = real.task_description, real.max_episode_length
        self.control_dt = real.control_dt
        self.pictures_drawn = 0
        self._announced: Sequence[int] | None = None
        self._outdated = np.ones(real.num_envs, bool)
        self._kept: dict[str, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        # A policy may know more of its environment than the contract says; recorded episodes are not started again.
        if name in {"real", "restore"}:
            raise AttributeError(name)
        return getattr(self.real, name)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """See `Environment.draw_conditions`."""
        return self.real.draw_conditions(generator)

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """See `Environment.vary_conditions`."""
        return self.real.vary_conditions(conditions, episode)

    def instruction(self, conditions: Conditions) -> str:
        """See `Environment.instruction`."""
        return self.real.instruction(conditions)

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
