"""Policies that benchmarks name by their class path."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import CAMERAS

NOTE = "ARENA_BENCHMARK_NOTE"
"""Variable that names the file for the time [s since the epoch] and the CPU seconds of the process."""

_POOL = 16
_HIDDEN = 512


def write_note() -> None:
    """Write the note over that of the probe of batches, which asks before the first control step."""
    Path(os.environ[NOTE]).write_text(json.dumps((time.time(), time.process_time())), encoding="utf-8")


class FirstStepPolicy(PolicyBase):
    """Does nothing, and notes the time of its action in a run of one control step."""

    name = "first_step"

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        write_note()
        return torch.zeros(env.num_envs, *env.action_spec.shape)


@dataclass(frozen=True, kw_only=True)
class PacedOptions:
    """Options of the policy."""

    answer_s: float = 1 / 120
    """Time to an answer [s]."""


class PacedPolicy(PolicyBase):
    """Waits without using the processor, like a policy with its network on a GPU, and does nothing."""

    name = "paced"
    config_class = PacedOptions

    def __init__(self, options: PacedOptions) -> None:
        self._answer_s = options.answer_s

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        time.sleep(self._answer_s)
        return torch.zeros(env.num_envs, *env.action_spec.shape)


class GlancePolicy(PolicyBase[None]):
    """Feeds all pictures of an env slot to a small random network; the first number of an action counts the calls."""

    traits = PolicyTraits(reproducible=True)

    def __init__(self, config: None = None) -> None:
        super().__init__(config)
        self._layers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._calls = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every env slot. Shape: (num_envs, action_dim)."""
        return self.act_in_some(env, observation, range(env.num_envs))

    @torch.no_grad()
    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as `get_action` does: the policy remembers nothing of an env slot."""
        del env_ids
        pictures = torch.stack([each.movedim(-1, 1).float() for each in observation[CAMERAS].values()], dim=1)
        seen = torch.nn.functional.avg_pool2d(pictures.flatten(0, 1), _POOL).reshape(env.num_envs, -1) / 255
        if self._layers is None:
            generator = torch.Generator().manual_seed(0)
            sizes = (seen.shape[1], _HIDDEN), (_HIDDEN, *env.action_spec.shape)
            first, second = (torch.randn(size, generator=generator) / size[0] ** 0.5 for size in sizes)
            self._layers = first, second
        first, second = self._layers
        action = torch.tanh(torch.tanh(seen @ first) @ second)
        self._calls += 1
        action[:, 0] = self._calls
        return action
