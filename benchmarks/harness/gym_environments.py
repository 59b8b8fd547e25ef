"""Two Gymnasium environments: ``Benchmark/Drawing-v0``, most of whose time is drawing, and ``Benchmark/Still-v0``.

A worker's interpreter imports this file, so it imports Gymnasium and numpy only.
"""

import time

import gymnasium
import numpy as np
from gymnasium import spaces

DRAWING = f"{__name__}:Benchmark/Drawing-v0"
STILL = f"{__name__}:Benchmark/Still-v0"
STEP_MS = 2.0
DRAWING_MS = 5.0


class DrawingEnvironment(gymnasium.Env):
    """Observes the place of a point and a picture of it, in episodes of 100 steps."""

    def __init__(self) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-np.inf, np.inf, (2,), np.float64), "front": spaces.Box(0, 255, (64, 64, 3), np.uint8)}
        )
        self.wanted = True

    def draw_pictures(self, wanted):
        """Draw the next pictures only if they are wanted."""
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
        """Return the place, and the picture if it is wanted."""
        if not self.wanted:
            return {"place": self.place}
        _work(DRAWING_MS)
        return {"place": self.place, "front": np.full((64, 64, 3), 100 + 50 * np.tanh(self.place[0]), np.uint8)}


def _work(milliseconds):
    """Use the processor for a time."""
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


class StillEnvironment(gymnasium.Env):
    """Does nothing, and observes 30 numbers and pictures of 256 x 256 pixels that never change."""

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


gymnasium.register("Benchmark/Drawing-v0", entry_point=f"{__name__}:DrawingEnvironment", max_episode_steps=100)
gymnasium.register("Benchmark/Still-v0", entry_point=f"{__name__}:StillEnvironment", max_episode_steps=1_000_000)
