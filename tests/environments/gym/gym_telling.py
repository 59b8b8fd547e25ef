"""Gymnasium environments that say in other places what they are asked for; registered below ``Telling``.

Nothing is imported here that a worker's interpreter might not have.
"""

import typing

import gymnasium
import numpy as np
from gymnasium import spaces


class Telling(gymnasium.Env):
    """Observes a number and a sentence; every second seed is solved where it starts, the others in their third step."""

    observation_space = spaces.Dict(
        {"number": spaces.Box(-9, 9, (2,)), "told": spaces.Dict({"task": spaces.Text(100)}), "note": spaces.Text(9)}
    )
    action_space = spaces.Dict({"gripper": spaces.Discrete(2), "arm": spaces.Box(-1, 1, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.clock, self.arm = int(seed or 0), 0, np.zeros(2)
        return self.observation(), self.info(solved=self.seed % 2 == 0)

    def step(self, action):
        self.clock += 1
        self.arm = action["arm"] + action["gripper"]
        return self.observation(), 0.0, False, False, self.info(solved=self.clock == 3)

    def observation(self) -> typing.Any:
        return {"number": self.arm, "told": {"task": f"sort {self.seed}"}, "note": "x"}

    def info(self, *, solved):
        return {"episode": {"success": solved, "r": {"mean": 0.5}}}


NAME = f"gym:{__name__}:Telling/Nested-v0"

gymnasium.register("Telling/Nested-v0", entry_point=f"{__name__}:Telling", max_episode_steps=6)
