"""An environment with one env slot as Gymnasium's own interface, for programs that know single environments."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from isaaclab_arena.environments.gym.observation_forms import ObservationForm
from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv
from isaaclab_arena.interfaces.environment import VIEWPORT, Environment
from isaaclab_arena.interfaces.pictures import Filmable
from isaaclab_arena.nested import with_leaves


class SingleEnv(gymnasium.Env):
    """Shows an environment with one env slot as a `gymnasium.Env`.

    ``info["success"]``, where the environment measures it, and ``info["diverged"]`` are bool; an episode whose physics
    diverged counts as truncated. Other metrics are numbers.

    Args:
        environment: What is shown, with ``num_envs`` 1; closed with this.
        seed: Seed of the episodes until `reset` is given another.
        render_mode: ``rgb_array`` for `render` to show the environment's viewport.
        observations: The form of observations.

    Raises:
        ValueError: If the environment has another number of env slots.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        environment: Environment,
        *,
        seed: int = 0,
        render_mode: str | None = None,
        observations: ObservationForm = ObservationForm.NESTED,
    ) -> None:
        if environment.num_envs != 1:
            raise ValueError(f"one env slot is shown, and the environment has {environment.num_envs}")
        self.environment = environment
        self.render_mode = render_mode
        self._vector_env = EnvironmentVectorEnv(environment, seed=seed, observations=observations)
        self.observation_space = self._vector_env.single_observation_space
        self.action_space = environment.single_action_space
        self.metadata = {**type(self).metadata, "render_fps": round(1.0 / environment.control_dt)}

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: the next one in turn, or with ``seed`` the first of a job of that seed.

        Returns:
            The observation, and ``info["conditions"]``, what the episode
            starts from.
        """
        super().reset(seed=seed)
        del options
        observation, info = self._vector_env.reset(seed=seed)
        return _first(observation), {"conditions": info["conditions"][0]}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one control step. Shape of ``action``: (action_dim,)."""
        observation, reward, terminated, truncated, info = self._vector_env.step(np.asarray(action, np.float32)[None])
        told = {name: values[0].item() for name, values in info.items()}
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), told

    def render(self) -> np.ndarray:
        """Return what the viewport shows. Shape: (height, width, 3), uint8.

        Raises:
            KeyError: If the environment cannot be filmed.
        """
        if not isinstance(self.environment, Filmable):
            raise KeyError(f"no camera {VIEWPORT}: this environment cannot be filmed")
        return self.environment.film([0], [VIEWPORT])[VIEWPORT][0]

    def close(self) -> None:
        """Close the environment."""
        self._vector_env.close()


def _first(observation: Any) -> Any:
    return with_leaves(observation, lambda part: part[0]) if isinstance(observation, Mapping) else observation[0]
