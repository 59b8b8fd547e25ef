"""A policy whose process dies in certain episodes, as one that runs into a bug in native code does."""

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy

STEP_S = "MORTAL_POLICY_STEP_S"
"""The environment variable that says how long the policy takes over each action [s]."""


@dataclass(frozen=True)
class MortalCfg(PolicyCfg):
    """Options of `MortalPolicy`.

    Attributes:
        marks: Directory in which each death leaves a file that names the episodes under way.
        deadly_episode: In which episode it dies, -1 for none.
        deaths: How often, in all processes together.
        dies_at_birth: Whether it dies while it is built, always.
        waits_for: A file without which no episode goes on, empty for none.
    """

    marks: str
    deadly_episode: int = -1
    deaths: int = 1
    dies_at_birth: bool = False
    waits_for: str = ""


class MortalPolicy(PolicyBase[MortalCfg]):
    """Acts at random, at its leisure where `STEP_S` is set, and kills its process in the third step of an episode."""

    config_class = MortalCfg
    traits = RandomActionPolicy.traits

    def __init__(self, config: MortalCfg) -> None:
        super().__init__(config)
        self._random = RandomActionPolicy()
        self._running: dict[int, int] = {}
        self._num_steps: dict[int, int] = {}
        if config.dies_at_birth:
            os.kill(os.getpid(), signal.SIGKILL)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self._random.start_episodes(env, starts)
        for start in starts:
            self._running[start.env_id], self._num_steps[start.env_id] = start.episode.episode_index, 0

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        self._random.end_episodes(env, env_ids)
        for env_id in env_ids:
            self._running.pop(env_id, None)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        while self.config.waits_for and not Path(self.config.waits_for).exists():
            time.sleep(0.05)
        time.sleep(float(os.environ.get(STEP_S, "0")))
        for env_id, index in self._running.items():
            self._num_steps[env_id] += 1
            if index == self.config.deadly_episode and self._num_steps[env_id] == 3:
                self._die()
        return self._random.get_action(env, observation)

    def _die(self) -> None:
        marks = Path(self.config.marks)
        number = len(list(marks.iterdir()))
        if number < self.config.deaths:
            (marks / str(number)).write_text(json.dumps(sorted(self._running.values())))
            os.kill(os.getpid(), signal.SIGKILL)


class LatePolicy(RandomActionPolicy):
    """Begins its episodes late: the files of a job that begins are delivered every half second, unless it has ended."""

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        time.sleep(0.7)
        super().start_episodes(env, starts)
