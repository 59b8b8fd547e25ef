"""Define what a task says of the moments of an episode, from which its events are read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.events.arm import ArmFacts


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One episode of a task in numbers, moment after moment: its start, and then the end of each control step.

    Every tensor has shape (moments,), on the CPU. What a task does not know is None, and has no event.

    Attributes:
        stages: What has to be done one after the other, each from 0 to 1. A stage above 0 says that those before it are
            done.
        arm: What the arm does.
        hand_m: How far the hand is from what it has to go to [m].
        reach_m: Distance at which it has come there [m].
        taken: Whether the hand holds or moves what it went to, bool.
        carried: Whether the hand holds something above what it stood on, or has begun to pull a handle, bool; None
            where nothing is to be held.
        delivered: Whether the thing lies where it belongs, so that letting go of it is right, bool.
        strayed_m: How far the thing has gone from where it should be, without the hand holding it [m].
        wrong_object: Whether another thing is held, or lies where it does not belong, bool.
        other_m: How far the hand is from a thing that it is not asked to go to [m].
        wrong_order: Whether a later part was done before an earlier one, bool.
        off_table: Whether a thing has left the table, bool.
        lifted: Whether a thing that is to be pushed is lifted, bool.
        met: Whether the goal is met now, bool.
        nearly: Whether it is met within twice its tolerances, bool.
    """

    stages: Sequence[torch.Tensor]
    arm: ArmFacts
    hand_m: torch.Tensor
    reach_m: float
    taken: torch.Tensor
    met: torch.Tensor
    nearly: torch.Tensor
    carried: torch.Tensor | None = None
    delivered: torch.Tensor | None = None
    strayed_m: torch.Tensor | None = None
    wrong_object: torch.Tensor | None = None
    other_m: torch.Tensor | None = None
    wrong_order: torch.Tensor | None = None
    off_table: torch.Tensor | None = None
    lifted: torch.Tensor | None = None

    @property
    def is_pushed(self) -> bool:
        """Whether a loose thing is to be pushed, and not to be held."""
        return self.carried is None and self.strayed_m is not None


def progress_of(facts: Facts, *, solved: bool) -> np.ndarray:
    """Return how far a task had come up to each moment, never less than before.

    With n stages, stage k (from 0) brings it from k / (n + 1) to (k + 1) / (n + 1). The rest is left for success.

    Args:
        facts: The episode.
        solved: Whether it succeeded; then its last moment has 1, and no other episode has 1 anywhere.

    Returns:
        0 to 1. Shape: (moments,), float64.
    """
    stages = np.stack([stage.numpy() for stage in facts.stages]).astype(np.float64).clip(0, 1)
    before = np.arange(len(stages))[:, None]
    now = np.where(stages > 0, before + stages, 0.0).max(axis=0) / (len(stages) + 1)
    so_far = np.maximum.accumulate(now)
    if solved:
        so_far[-1] = 1.0
    return so_far


def approach(distance_m: torch.Tensor, reach_m: float) -> torch.Tensor:
    """Return the share of the way to a place, of what there was at the start: 1 within reach. Shape: (moments,).

    Args:
        distance_m: How far the place is [m]. Shape: (moments,).
        reach_m: Distance that counts as there [m].
    """
    left = distance_m.numpy() - reach_m
    return torch.from_numpy((1 - left / left[:1].clip(min=1e-3)).clip(0, 1))


def strayed(position: torch.Tensor, held: torch.Tensor, settle_steps: int = 10) -> torch.Tensor:
    """Return how far a thing has gone over the table since nobody held it, or since it was let go [m].

    Args:
        position: Where it is [m]. Shape: (moments, 3).
        held: Whether it is held. Shape: (moments,), bool.
        settle_steps: Control steps that it has to come to rest after it was let go.

    Returns:
        0 while it is held and comes to rest. Shape: (moments,).
    """
    moments = torch.arange(len(held))
    last_held = torch.cummax(torch.where(held, moments + settle_steps, 0), dim=0).values
    left_at = position[torch.minimum(last_held, moments)]
    way = (position - left_at)[:, :2]
    return torch.sqrt((way * way).sum(dim=1))
