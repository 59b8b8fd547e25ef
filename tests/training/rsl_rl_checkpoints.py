"""Checkpoints as older releases of rsl_rl write them, and the settings of a training that they fit."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

NUM_NUMBERS, NUM_ACTIONS, HIDDEN = 5, 1, [32, 16]
SIZES = tuple(f"agent.{role}.hidden_dims={HIDDEN}" for role in ("actor", "critic"))
PLAIN = (*SIZES, "agent.actor.obs_normalization=false", "agent.critic.obs_normalization=false")


class ActorCritic(nn.Module):
    """Both networks in one module, as rsl_rl had it up to version 3."""

    def __init__(self, *, num_numbers: int = NUM_NUMBERS) -> None:
        super().__init__()
        self.actor = perceptron(num_numbers, NUM_ACTIONS)
        self.critic = perceptron(num_numbers, 1)
        # A parameter of the module itself comes before those of its parts, whenever it is made.
        self.std = nn.Parameter(torch.ones(NUM_ACTIONS))


def perceptron(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_inputs, HIDDEN[0]),
        nn.ELU(),
        nn.Linear(HIDDEN[0], HIDDEN[1]),
        nn.ELU(),
        nn.Linear(HIDDEN[1], num_outputs),
    )


def old_checkpoint(path: Path, *, num_numbers: int = NUM_NUMBERS, **more: Any) -> tuple[Path, ActorCritic, Any]:
    """Write what Isaac Lab's rsl_rl 2 writes after a few steps of Adam; return module and optimiser too."""
    torch.manual_seed(2)
    module = ActorCritic(num_numbers=num_numbers)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.005)
    for _ in range(3):
        seen = torch.randn(8, num_numbers)
        optimizer.zero_grad()
        (module.actor(seen).square().mean() * module.std.sum() + module.critic(seen).sum()).backward()
        optimizer.step()
    content = {"model_state_dict": module.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save({**content, "iter": 1499, "infos": None, **more}, path)
    return path, module, optimizer
