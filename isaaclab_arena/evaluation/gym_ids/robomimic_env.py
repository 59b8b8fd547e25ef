"""Adapt environments to robomimic's ``EnvGym``: Gym before 2022, flat observations, actions from -1 to 1."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from isaaclab_arena.environments.gym.vector_env import SingleEnv
from isaaclab_arena.evaluation.gym_ids.making import make_single_env
from isaaclab_arena.models.action_scaling import ActionScaler, ActionScaling
from isaaclab_arena.storage.robomimic_file import flat_array


class RobomimicEnv:
    """Adapts an environment with one env slot to ``EnvGym``. It closes that environment."""

    # `reset` returns an observation only, `step` four values, and `render` takes the mode. An observation equals
    # ``obs/flat`` of an exported file, and actions have the scale of its ``actions``.
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, env: SingleEnv) -> None:
        self.env = env
        self.spec: Any = None  # Gym's registry leaves it here.
        arena = env.environment
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, arena.action_spec.shape, np.float32)
        self._scaler = ActionScaler(arena.action_spec, ActionScaling.WITHIN_BOUNDS, device=torch.device("cpu"))
        self._solved = False

    @property
    def unwrapped(self) -> "RobomimicEnv":
        """The environment itself."""
        return self

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode; see `SingleEnv.reset`. Return the observation (num_numbers,), float32."""
        self._solved = False
        observation, _ = self.env.reset(seed=seed)
        return flat_array(observation["policy"])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        """Make one control step with an action (action_dim,). Return observation, reward, end, and info."""
        # Bounded entries are scaled from -1..1 to their bounds.
        wanted = self._scaler(torch.as_tensor(np.asarray(action, np.float32))).numpy()
        observation, reward, terminated, truncated, info = self.env.step(wanted)
        self._solved = bool(info.get("success", False))
        return flat_array(observation["policy"]), reward, terminated or truncated, info

    def render(self, mode: str = "rgb_array", height: int | None = None, width: int | None = None) -> np.ndarray:
        """Return the viewport in its own size. Shape: (height, width, 3), uint8."""
        del mode, height, width
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _check_success(self) -> dict[str, bool]:
        # EnvGym calls this name.
        return {"task": self._solved}


def make_robomimic_env(environment: str, *, lang: str | None = None, **kwargs: Any) -> RobomimicEnv:
    """Build an environment with one env slot for robomimic; `kwargs` as for `make_single_env`."""
    # Robomimic 0.5 passes `lang` to every environment; this one has its own instruction.
    del lang
    return RobomimicEnv(make_single_env(environment, observations="nested", **kwargs))
