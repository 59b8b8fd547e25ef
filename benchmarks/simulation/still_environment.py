"""A Gymnasium environment that does nothing, so that what a step costs is what is around it: ``Benchmark/Still-v0``.

Nothing is imported here that a worker's interpreter might not have.
"""

import gymnasium
import numpy as np
from gymnasium import spaces

ID = f"{__name__}:Benchmark/Still-v0"


class StillEnvironment(gymnasium.Env):
    """Observes 30 numbers and pictures of 256 x 256 pixels that never change."""

    def __init__(self, num_pictures: int = 0) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.observed: dict[str, np.ndarray] = {"numbers": np.zeros(30)}
        shown: dict[str, spaces.Space] = {"numbers": spaces.Box(-1.0, 1.0, (30,), np.float64)}
        for index in range(num_pictures):
            self.observed[f"camera_{index}"] = np.full((256, 256, 3), index, np.uint8)
            shown[f"camera_{index}"] = spaces.Box(0, 255, (256, 256, 3), np.uint8)
        self.observation_space = spaces.Dict(shown)

    def reset(self, *, seed=None, options=None):
        """Start an episode."""
        super().reset(seed=seed, options=options)
        return self.observed, {}

    def step(self, action):
        """Make a step."""
        del action
        return self.observed, 0.0, False, False, {}


gymnasium.register("Benchmark/Still-v0", entry_point=f"{__name__}:StillEnvironment", max_episode_steps=1_000_000)
