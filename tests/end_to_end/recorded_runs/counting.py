"""A Gymnasium environment of whole numbers, so that runs of it have the same bits on every processor.

The recorded runs name this file by its content: it never changes.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env[np.ndarray, np.ndarray]):
    """Count to a number that each episode draws; a third of them count too slowly."""

    metadata = {"render_fps": 10}  # noqa: RUF012  Gymnasium's own spelling

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 100, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        self.count, self.goal = 0, int(self.np_random.integers(2, 9))
        self.stride = 1 if self.np_random.integers(3) else 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        done = self.count * self.stride >= self.goal
        return self._observation(), float(done), done, False, {"is_success": done}

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.goal], np.float32)


gymnasium.register("Recorded/Counting-v0", entry_point=f"{__name__}:Counting", max_episode_steps=10)
