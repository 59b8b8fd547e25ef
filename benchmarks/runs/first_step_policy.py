"""A policy that writes down when it is first asked for an action."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg


@dataclass(frozen=True)
class FirstStepOptions(PolicyCfg):
    """Options of the policy."""

    note: str = ""  # File for the time [s since the epoch] and the CPU seconds of the process at the first action.


class FirstStepPolicy(PolicyBase[FirstStepOptions]):
    """Writes down when it is first asked, and does nothing."""

    name = "first_step"
    config_class = FirstStepOptions

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        assert self.config is not None
        note = Path(self.config.note)
        if not note.exists():
            note.write_text(json.dumps((time.time(), time.process_time())), encoding="utf-8")
        return torch.zeros(env.num_envs, *env.action_spec.shape)
