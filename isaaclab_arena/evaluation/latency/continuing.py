"""What new chunks go on from in real-time chunking, as pure functions."""

import math

import torch

from isaaclab_arena.interfaces.policy_traits import Continuation


def soft_mask(horizon: int, *, committed: int, planned: int) -> torch.Tensor:
    """Return how strongly each action of a new chunk is bound to the one that is planned for its step.

    Black, Galliker and Levine, "Real-Time Execution of Action Chunking Flow Policies", 2025, arXiv 2506.07339,
    equation 5: 1 for actions that are played before the chunk is there, then less and less, 0 where none is planned.

    Args:
        horizon: Actions of the new chunk.
        committed: Those that are played before it is there.
        planned: Those for whose step an action is planned, at least as many.

    Returns:
        Shape: (horizon,), float32.
    """
    weights = torch.zeros(horizon)
    weights[:committed] = 1.0
    for place in range(committed, planned):
        remaining = (planned - place) / (planned - committed + 1)
        weights[place] = remaining * math.expm1(remaining) / math.expm1(1.0)
    return weights


def continuation(plans: torch.Tensor, played: torch.Tensor, *, committed: int) -> Continuation:
    """Return what the chunks of some env slots go on from.

    Args:
        plans: Their present chunks. Shape: (n, horizon, action_dim).
        played: Actions of them that belong to earlier steps, ``horizon`` where there is no chunk. Shape: (n,), int64.
        committed: Actions that are played before the new chunks are there.
    """
    horizon = plans.shape[1]
    actions = torch.zeros_like(plans)
    weights = torch.zeros(plans.shape[:2])
    for place, begin in enumerate(played.tolist()):
        planned = horizon - begin
        actions[place, :planned] = plans[place, begin:]
        if planned > 0:
            weights[place] = soft_mask(horizon, committed=committed, planned=planned)
    return Continuation(actions=actions, weights=weights)


def bound(chunks: torch.Tensor, going_on: Continuation) -> torch.Tensor:
    """Return chunks with the actions that were committed in place of those that the network made of them.

    Args:
        chunks: What the network answered. Shape: (n, horizon, action_dim).
        going_on: What it was to go on from.
    """
    is_committed = (going_on.weights >= 1.0)[:, :, None]
    return torch.where(is_committed, going_on.actions, chunks)
