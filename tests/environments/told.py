"""Facts that a test states, of an episode in which nothing else happens: the hand is near, and the arm moves."""

from collections.abc import Sequence
from typing import Any

import torch

from isaaclab_arena.environments.events import ArmFacts, Facts


def told(
    *,
    moments: int,
    stages: Sequence[Sequence[float]] | None = None,
    blocked: str = "",
    travel_m: float = 1.0,
    **facts: Any,
) -> Facts:
    """Return facts. What is a pattern, ``..##``, holds in the moments of its hashes, and in no later one.

    Args:
        moments: Moments of the episode.
        stages: By default one that is done halfway from the start on.
        blocked: When the arm stands against something.
        travel_m: How far the hand goes [m].
        facts: Patterns and numbers of other attributes.
    """
    patterns = {"taken": "", "met": "", "nearly": ""} | {k: v for k, v in facts.items() if isinstance(v, str)}
    numbers = {"hand_m": [0.01] * moments} | {k: v for k, v in facts.items() if not isinstance(v, str)}
    return Facts(
        stages=[torch.tensor(stage).double() for stage in stages or [[0.5] * moments]],
        arm=ArmFacts(travel_m=torch.full((moments,), travel_m), blocked=_holds(blocked, moments)),
        reach_m=0.05,
        **{name: torch.tensor(each) for name, each in numbers.items()},
        **{name: _holds(pattern, moments) for name, pattern in patterns.items()},
    )


def _holds(pattern: str, moments: int) -> torch.Tensor:
    return torch.tensor([each == "#" for each in pattern.ljust(moments, ".")])
