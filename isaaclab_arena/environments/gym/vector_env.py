"""An environment as Gymnasium's vector API shows it, for users who bring a loop of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from isaaclab_arena.environments.gym.observation_forms import ObservationForm, formed, formed_space
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.nested import with_leaves


class EnvironmentVectorEnv(VectorEnv):
    """Shows an environment as a `gymnasium.vector.VectorEnv` that never resets by itself.

    Env slots are reset with ``reset(options={"reset_mask": mask})``. ``info["success"]`` and ``info["diverged"]`` have
    shape (num_envs,); a diverged slot counts as truncated. The terminal observation is that of the last step.

    Args:
        environment: What is shown; closed with this.
        seed: Seed of the episodes until `reset` is given another.
        observations: The form of observations.
    """

    def __init__(
        self, environment: Environment, *, seed: int = 0, observations: ObservationForm = ObservationForm.NESTED
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.environment = environment
        self.num_envs = environment.num_envs
        self.single_action_space = environment.single_action_space
        self.action_space = environment.action_space
        self.single_observation_space = formed_space(environment.observation_spec, observations, ())
        self.observation_space = formed_space(environment.observation_spec, observations, (environment.num_envs,))
        self._form = observations
        self._seed = seed
        self._next_episode = 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all env slots, or in those of ``options["reset_mask"]``.

        Args:
            seed: One number: the seed of a job, whose episodes 0, 1, 2 … the slots then take in turn, as in a job file.
                A list: the seed of each slot's episode 0; None takes the next episode in turn.
            options: ``reset_mask`` of shape (num_envs,), bool.

        Returns:
            The observation of all env slots, and ``info["conditions"]``, what each started slot starts from.
        """
        mask = np.ones(self.num_envs, bool) if options is None else np.asarray(options["reset_mask"], bool)
        if isinstance(seed, int):
            self._seed, self._next_episode = seed, 0
        own = seed if isinstance(seed, Sequence) else [None] * self.num_envs
        slots = np.flatnonzero(mask).tolist()
        episodes = [self._episode(own[slot]) for slot in slots]
        conditions = [self._conditions(episode) for episode in episodes]
        observation = self.environment.reset(
            torch.tensor(slots, dtype=torch.int64, device=self.environment.device), conditions
        )
        return self._formed(observation), {"conditions": dict(zip(slots, conditions, strict=True))}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every env slot that has not finished. Shape of ``actions``: (num_envs, action_dim)."""
        action = torch.as_tensor(np.asarray(actions), dtype=torch.float32, device=self.environment.device)
        step = self.environment.step(action)
        info = {"diverged": step.diverged.cpu().numpy(), **{name: v.cpu().numpy() for name, v in step.metrics.items()}}
        if step.success is not None:
            info["success"] = step.success.cpu().numpy()
        truncated = step.truncated | step.diverged
        return (
            self._formed(step.observation),
            step.reward.cpu().numpy(),
            step.terminated.cpu().numpy(),
            truncated.cpu().numpy(),
            info,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        del kwargs
        self.environment.close()

    def _formed(self, observation: Observation) -> Any:
        arrays = with_leaves(observation, lambda part: part.cpu().numpy())
        return formed(arrays, self._form, batch_dims=1)

    def _episode(self, seed: int | None) -> Episode:
        if seed is not None:
            return Episode(job="vector", episode_index=0, seed=seed)
        index, self._next_episode = self._next_episode, self._next_episode + 1
        return Episode(job="vector", episode_index=index, seed=self._seed)

    def _conditions(self, episode: Episode) -> Mapping[str, Any]:
        drawn = self.environment.draw_conditions(episode.conditions_generator())
        return self.environment.vary_conditions(drawn, episode)
