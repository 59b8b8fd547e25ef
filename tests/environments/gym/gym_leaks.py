"""Gymnasium environments whose episodes depend on more than their seed, as people write them: ``Leak/...``.

Nothing is imported here that a worker's interpreter might not have.
"""

import importlib
import random

import gymnasium
import numpy as np
from gymnasium import spaces


class Leaking(gymnasium.Env):
    """Observes a number that drifts with what `noise` gives in each step; an episode lasts 10 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.clock = self.np_random.uniform(-1, 1), 0
        return np.array([self.number]), {}

    def step(self, action):
        self.clock += 1
        self.number += self.noise()
        return np.array([self.number]), self.reward(), self.clock >= 10, False, {"success": self.solved()}

    def noise(self):
        return 0.0

    def reward(self):
        return self.number

    def solved(self) -> bool:
        return False


class GlobalNoise(Leaking):
    """Draws from NumPy's and Python's generators, of normal numbers an odd number in each step."""

    def __init__(self):
        self.offset = np.random.uniform()

    def noise(self):
        return np.random.normal() + random.gauss(0, 1) + random.random() + self.offset


class TorchNoise(Leaking):
    """Draws from torch's generator, as a learned simulator does."""

    def noise(self):
        return float(importlib.import_module("torch").rand(1))


class RareNoise(Leaking):
    """Draws from Python's generator in some of its steps only."""

    def noise(self):
        return random.gauss(0, 1) if self.clock in (3, 4, 7) else 0.0


class OwnNoise(Leaking):
    """Draws from a generator that no seed reaches."""

    def __init__(self):
        self.generator = np.random.default_rng()

    def noise(self):
        return self.generator.normal()


class CountsResets(Leaking):
    """Every second episode is solved in its fifth step, whatever its seed."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed)

    def solved(self):
        return self.resets % 2 == 0 and self.clock == 5


class RemembersLast(Leaking):
    """Pays less after an episode that began with another number."""

    begun: tuple[float, ...] = ()

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.begun = tuple(dict.fromkeys((*self.begun, self.number)))
        return observation, info

    def reward(self):
        return 1.0 / len(self.begun)


def normalised():
    return gymnasium.wrappers.NormalizeReward(Leaking())


LEAKS = (OwnNoise, CountsResets, RemembersLast, normalised)
for each in (Leaking, GlobalNoise, RareNoise, TorchNoise, *LEAKS):
    gymnasium.register(f"Leak/{each.__name__}-v0", entry_point=f"{__name__}:{each.__name__}", max_episode_steps=20)


def name_of(maker) -> str:
    """Name of an environment in a job."""
    return f"gym:{__name__}:Leak/{maker.__name__}-v0"
