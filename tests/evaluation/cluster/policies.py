"""Policies that take their time."""

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

STEP_S = "SLOW_POLICY_STEP_S"
"""The environment variable that says how long the policy takes over each action [s]."""


@dataclass(frozen=True)
class SlowCfg(PolicyCfg):
    """Options of `SlowPolicy`: a file without which no episode goes on."""

    waits_for: str


class SlowPolicy(PolicyBase[SlowCfg]):
    """Acts at random, at its leisure where `STEP_S` is set."""

    config_class = SlowCfg
    traits = RandomActionPolicy.traits

    def __init__(self, config: SlowCfg) -> None:
        super().__init__(config)
        self._random = RandomActionPolicy()

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self._random.start_episodes(env, starts)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        while not Path(self.config.waits_for).exists():
            time.sleep(0.05)
        time.sleep(float(os.environ.get(STEP_S, "0")))
        return self._random.get_action(env, observation)


class LatePolicy(RandomActionPolicy):
    """Begins its episodes late: the files of a job that begins are delivered every half second, unless it has ended."""

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        time.sleep(0.7)
        super().start_episodes(env, starts)
