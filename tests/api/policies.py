"""Policies as users of the Python interface write them, for an environment that any action suits."""

from collections.abc import Sequence
from typing import Any

import torch

from isaaclab_arena.environments import Environment, Observation
from isaaclab_arena.policies import PolicyBase


def flat(observation: Any) -> torch.Tensor:
    return torch.cat([term.float().flatten(1) for term in observation["policy"].values()], dim=1)


def push(observation: Any) -> torch.Tensor:
    """Push a cart towards where its pole falls. Shape of what it returns: (num_envs, 1)."""
    return flat(observation).sum(dim=1, keepdim=True).clamp(-1, 1)


class Network(torch.nn.Module):
    """A module that acts, and remembers in which mode it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(1)
        self.drop = torch.nn.Dropout(0.5)
        self.modes: list[bool] = []

    def forward(self, observation: Any) -> torch.Tensor:
        self.modes.append(self.training)
        return torch.tanh(self.drop(self.layer(flat(observation))))


class Gain(PolicyBase):
    """A policy object with one parameter; it counts how often it is closed."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.num_closed = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.gain * push(observation)

    def close(self) -> None:
        self.num_closed += 1


class ArenaShaped:
    """A policy with Isaac Lab Arena's methods that derives from nothing, and notes its env slots."""

    def __init__(self) -> None:
        self.resets: list[list[int]] = []

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return push(observation)

    def reset(self, env_ids: torch.Tensor | Sequence[int] | None = None) -> None:
        self.resets.append([] if env_ids is None else [int(each) for each in env_ids])
