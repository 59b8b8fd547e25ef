"""A Gymnasium environment that breaks what it can; importing this registers it as ``Mischief/Env-v0``."""

import os
import pathlib
import signal
import sys
import typing

import gymnasium
import numpy as np
from gymnasium import spaces

ID = "tests.environments.gym.gym_mischief:Mischief/Env-v0"

_SPACES: dict[str, spaces.Space] = {
    "dict action": spaces.Dict({"a": spaces.Discrete(2)}),
    "tuple action": spaces.Tuple((spaces.Discrete(2),)),
    "text action": spaces.Text(5),
    "sequence observation": spaces.Sequence(spaces.Discrete(2)),
}


class MischiefEnvironment(gymnasium.Env):
    """Episodes of three steps, the second of which goes wrong as asked for; every episode succeeds at its end."""

    def __init__(self, mischief=""):
        if isinstance(mischief, Exception):
            raise mischief
        self.mischief = mischief
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        if mischief in _SPACES:
            kind = "action_space" if mischief.endswith("action") else "observation_space"
            setattr(self, kind, _SPACES[mischief])
        if mischief == "unbounded action":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        if mischief == "discrete action":
            self.action_space = spaces.Discrete(3)
        images = {
            "float picture": spaces.Box(0.0, 255.0, (4, 4, 3), np.float32),
            "empty picture": spaces.Box(0, 255, (0, 4, 3), np.uint8),
        }
        self.observation_space = images.get(mischief, self.observation_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self._observation(), {}

    def step(self, action):
        self.clock += 1
        if self.clock == 2:
            self._misbehave()
        terminated = self.clock >= (1 if self.mischief == "one step" else 3)
        observation: typing.Any = self._observation()
        if self.clock == 2 and self.mischief == "words":
            observation = ["a", "b"]
        if self.clock == 2 and self.mischief == "doubles":
            observation = observation.astype(np.float64)
        info = {"success": self._success()} if terminated else {}
        return observation, 1.0, terminated, terminated and self.mischief == "both ends", info

    def _observation(self):
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype)

    def _success(self):
        successes = {
            "numpy success": np.bool_(True),
            "success in an array": np.array([True]),
            "two successes": np.array([True, True]),
            "success in words": "yes",
            "no success": None,
        }
        return successes.get(self.mischief, True)

    def _misbehave(self):
        mischiefs = {
            "leave": lambda: sys.exit(0),
            "print": lambda: sys.stdout.write("\x1b[2Jgotcha\n"),
            "move": lambda: os.chdir(pathlib.Path("/")),
            "steal signals": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
            "wicked error": lambda: _raise(OSError("\x1b[31m=cmd()\r\u202eevil\udcff")),
        }
        mischiefs.get(self.mischief, lambda: None)()


def _raise(error: Exception) -> None:
    raise error


gymnasium.register("Mischief/Env-v0", entry_point=f"{__name__}:MischiefEnvironment", max_episode_steps=20)
gymnasium.register(
    "Mischief/Automatic-v0",
    entry_point=f"{__name__}:MischiefEnvironment",
    max_episode_steps=20,
    additional_wrappers=(gymnasium.wrappers.Autoreset.wrapper_spec(),),
)
