"""Policies as users of the Python interface write them, for an environment that any action suits."""

from collections.abc import Sequence
from typing import Any

import torch

from isaaclab_arena.environments import Environment, Observation
from isaaclab_arena.policies import PolicyBase

NUM_ACTIONS = {"cartpole": 1, "reach": 8}


def push(observation: Any) -> torch.Tensor:
    """Push a cart towards where its pole falls. Shape of what it returns: (num_envs, 1)."""
    terms = observation["policy"]
    return torch.cat([term.float().flatten(1) for term in terms.values()], dim=1).sum(dim=1, keepdim=True).clamp(-1, 1)


class Network(torch.nn.Module):
    """A module that acts, and remembers in which mode it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(1)
        self.drop = torch.nn.Dropout(0.5)
        self.modes: list[bool] = []

    def forward(self, observation: Any) -> torch.Tensor:
        """Return the actions. Shape: (num_envs, 1)."""
        self.modes.append(self.training)
        terms = [term.float().flatten(1) for term in observation["policy"].values()]
        return torch.tanh(self.drop(self.layer(torch.cat(terms, dim=1))))


class Gain(PolicyBase):
    """A policy object with one parameter; it counts how often it is closed."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.num_closed = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return a multiple of what `push` does."""
        return self.gain * push(observation)

    def close(self) -> None:
        """Count."""
        self.num_closed += 1


class ArenaShaped:
    """A policy with Isaac Lab Arena's methods that derives from nothing."""

    def __init__(self) -> None:
        self.resets: list[list[int]] = []

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return what `push` does."""
        del env
        return push(observation)

    def reset(self, env_ids: torch.Tensor | Sequence[int] | None = None) -> None:
        """Note the env slots."""
        self.resets.append([] if env_ids is None else [int(each) for each in env_ids])
