"""A policy that takes its time and no processor, as one does whose network is on a GPU."""

import time
from dataclasses import dataclass

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase


@dataclass(frozen=True, kw_only=True)
class PacedOptions:
    """Options of the policy."""

    answer_s: float = 1 / 120
    """How long it takes to answer [s]."""


class PacedPolicy(PolicyBase):
    """Waits, and does nothing."""

    name = "paced"
    config_class = PacedOptions

    def __init__(self, options: PacedOptions) -> None:
        self._answer_s = options.answer_s

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        time.sleep(self._answer_s)
        return torch.zeros(env.num_envs, *env.action_spec.shape)
