"""A policy that takes its time, in Python or in native code that never lets Python run."""

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy


@dataclass(frozen=True)
class SluggishCfg(PolicyCfg):
    """Options of `SluggishPolicy`."""

    marks: str  # directory in which a file named after the process appears when the long wait begins
    when: str = "step"  # or "build"
    from_step: int = 0  # the first step that is slow
    holds_interpreter: bool = False  # whether nothing else of the process can run meanwhile
    wait_s: float = 600.0


class SluggishPolicy(PolicyBase[SluggishCfg]):
    """Acts at random, and then for a very long time not at all."""

    config_class = SluggishCfg

    def __init__(self, config: SluggishCfg) -> None:
        super().__init__(config)
        self._sluggish = config
        self._random = RandomActionPolicy()
        self._num_steps = 0
        if config.when == "build":
            self._wait()

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self._random.start_episodes(env, starts)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        if self._sluggish.when == "step" and self._num_steps >= self._sluggish.from_step:
            self._wait()
        self._num_steps += 1
        return self._random.get_action(env, observation)

    def _wait(self) -> None:
        Path(self._sluggish.marks, str(os.getpid())).touch()
        if self._sluggish.holds_interpreter:
            ctypes.PyDLL(None).sleep(int(self._sluggish.wait_s))
        else:
            time.sleep(self._sluggish.wait_s)
