"""The policies that do nothing, or anything, to try an environment out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits


@dataclass(frozen=True)
class ZeroActionPolicyCfg(PolicyCfg):
    """Options of `ZeroActionPolicy`: none."""


class ZeroActionPolicy(PolicyBase[ZeroActionPolicyCfg]):
    """Returns zeros, as in Isaac Lab Arena."""

    # Zero is literal: an environment with joint position targets moves to zero, and does not stand still.
    name: ClassVar[str] = "zero_action"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return zeros. Shape: (num_envs, action_dim)."""
        del observation
        return torch.zeros((env.num_envs, *env.action_spec.shape), device=env.device)

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return zeros; see `PolicyBase.act_in_some`."""
        del env_ids
        return self.get_action(env, observation)


BLOCK_STEPS = 64


@dataclass(frozen=True)
class RandomActionPolicyCfg(PolicyCfg):
    """Options of `RandomActionPolicy`: none."""


class RandomActionPolicy(PolicyBase[RandomActionPolicyCfg]):
    """Draws every action uniformly between the bounds of the action space, -1 to 1 where it has none."""

    # An episode's numbers come from its own stream, so they are the same bits for any number of environments and in any
    # env slot. An env slot without a started episode gets zeros.
    name: ClassVar[str] = "random_action"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def __init__(self, config: RandomActionPolicyCfg | None = None) -> None:
        super().__init__(config)
        self._generators: dict[int, np.random.Generator] = {}
        self._blocks = np.zeros((0, BLOCK_STEPS, 0))
        self._positions = np.zeros(0, np.int64)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Take over the random streams of the episodes that begin."""
        shape = (env.num_envs, BLOCK_STEPS, *env.action_spec.shape)
        if self._blocks.shape != shape:
            self._generators = {}
            self._blocks = np.zeros(shape)
            self._positions = np.zeros(env.num_envs, np.int64)
        for start in starts:
            self._generators[start.env_id] = start.episode.policy_generator()
            self._positions[start.env_id] = BLOCK_STEPS

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next action of every env slot. Shape: (num_envs, action_dim)."""
        del observation
        if self._blocks.shape[0] != env.num_envs:
            return torch.zeros((env.num_envs, *env.action_spec.shape), device=env.device)
        # Draw in blocks: one generator call per env slot and step would cost more than a small policy network.
        for slot in np.flatnonzero(self._positions == BLOCK_STEPS).tolist():
            self._positions[slot] = 0
            if slot in self._generators:
                spec = env.action_spec
                low = np.full(spec.shape, -1.0) if spec.low is None else np.asarray(spec.low).reshape(spec.shape)
                high = np.full(spec.shape, 1.0) if spec.high is None else np.asarray(spec.high).reshape(spec.shape)
                # A one-sided bound keeps the other side of [-1, 1] if it lies within, else it gets a range as wide.
                low = np.where(np.isfinite(low), low, np.where(high > -1.0, -1.0, high - 2.0))
                high = np.where(np.isfinite(high), high, np.where(low < 1.0, 1.0, low + 2.0))
                unit = self._generators[slot].random(self._blocks.shape[1:])
                self._blocks[slot] = low + (high - low) * unit
        action = self._blocks[np.arange(env.num_envs), self._positions]
        self._positions += 1
        return torch.from_numpy(action.astype(np.float32)).to(env.device, non_blocking=True)

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the actions that are already drawn; see `PolicyBase.planned`."""
        return torch.from_numpy(self._blocks[env_id, self._positions[env_id] :].astype(np.float32))
