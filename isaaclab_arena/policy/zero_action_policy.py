"""The policy that does nothing, to try an environment out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits


@dataclass(frozen=True)
class ZeroActionPolicyCfg(PolicyCfg):
    """Options of `ZeroActionPolicy`: none."""


class ZeroActionPolicy(PolicyBase[ZeroActionPolicyCfg]):
    """Returns zeros, as in Isaac Lab Arena."""

    # Zero is literal: an environment with joint position targets moves to zero, and does not stand still.
    name: ClassVar[str] = "zero_action"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)
    config_class: ClassVar[type | None] = ZeroActionPolicyCfg

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        return torch.zeros((env.num_envs, *env.action_spec.shape), device=env.device)

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return zeros; see `PolicyBase.act_in_some`."""
        del env_ids
        return self.get_action(env, observation)
