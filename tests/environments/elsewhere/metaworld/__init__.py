"""A stand-in for Meta-World, laid out as its wheel is: one task, whose solution only its expert knows."""

import gymnasium
import numpy as np

from metaworld import sawyer_xyz_env  # noqa: F401  as in the wheel, where it is reached through the package


class Reach(gymnasium.Env):
    """A point that is where it should be once the actions of an episode add up to what its first observation says."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, seed=None, render_mode=None):
        self.render_mode = render_mode

    def seed(self, seed):
        self._goal = np.random.default_rng(seed).uniform(-3, 3, 4)

    def reset(self, *, seed=None, options=None):
        self._left = self._goal.copy()
        return self._observe(), {}

    def step(self, action):
        self._left -= np.asarray(action, np.float64)
        solved = bool(np.abs(self._left).max() < 1e-6)
        return self._observe(), float(solved), False, False, {"success": float(solved)}

    def render(self):
        return np.full((8, 8, 3), 7, np.uint8)

    def _observe(self):
        return np.concatenate([self._left, np.zeros(35)]).astype(np.float32)


ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE = {"reach-v3-goal-observable": Reach}
