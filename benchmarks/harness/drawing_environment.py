"""A Gymnasium environment of which drawing takes most of the time, as of those with a camera: ``Benchmark/Drawing-v0``.

Nothing is imported here that a worker's interpreter might not have.
"""

import time

import gymnasium
import numpy as np
from gymnasium import spaces

ID = f"{__name__}:Benchmark/Drawing-v0"
STEP_MS = 2.0
DRAWING_MS = 5.0


class DrawingEnvironment(gymnasium.Env):
    """Observes where a point is, and a picture of it, in episodes of 100 steps."""

    def __init__(self) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-np.inf, np.inf, (2,), np.float64), "front": spaces.Box(0, 255, (64, 64, 3), np.uint8)}
        )
        self.wanted = True

    def draw_pictures(self, wanted):
        """Say whether the next picture is wanted."""
        self.wanted = wanted

    def reset(self, *, seed=None, options=None):
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self.place = self.np_random.uniform(-1, 1, 2)
        return self.observe(), {}

    def step(self, action):
        """Make a step."""
        _work(STEP_MS)
        self.place = self.place + 0.1 * action
        return self.observe(), 0.0, False, False, {}

    def observe(self):
        """Return what is wanted of an observation."""
        if not self.wanted:
            return {"place": self.place}
        _work(DRAWING_MS)
        return {"place": self.place, "front": np.full((64, 64, 3), 100 + 50 * np.tanh(self.place[0]), np.uint8)}


def _work(milliseconds):
    """Use the processor for so long."""
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


gymnasium.register("Benchmark/Drawing-v0", entry_point=f"{__name__}:DrawingEnvironment", max_episode_steps=100)
