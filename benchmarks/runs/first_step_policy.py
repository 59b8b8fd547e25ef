"""A policy that writes down when it is asked for the action of a run that has a single control step."""

import json
import os
import time
from pathlib import Path

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase

NOTE = "ARENA_BENCHMARK_NOTE"
"""Variable that names the file for the time [s since the epoch] and the CPU seconds of the process."""


class FirstStepPolicy(PolicyBase):
    """Writes down when it was asked, and does nothing."""

    name = "first_step"

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        write_note()
        return torch.zeros(env.num_envs, *env.action_spec.shape)


def write_note() -> None:
    """Write the note, over what the probe of its batches left, which asks before the first control step."""
    Path(os.environ[NOTE]).write_text(json.dumps((time.time(), time.process_time())), encoding="utf-8")
