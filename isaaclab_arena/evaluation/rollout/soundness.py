"""Find NaN and infinity in what environments show and reward. They end an episode as an error, and nothing else."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Observation, SideBySide
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.nested import leaves, with_leaves


def unsound_slots(observation: Observation, reward: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return the env slots where a number is NaN or infinite; None where it is known that there are none.

    Args:
        observation: Nested dict of tensors, batched by env slot; pictures are not looked at.
        reward: Shape: (num_envs,).

    Returns:
        Shape: (num_envs,), bool. On a GPU it is always there: to look would be to wait.
    """
    parts = [] if reward is None else [reward]
    for group, terms in observation.items():
        if isinstance(terms, SideBySide):
            parts.append(terms.together)
        elif group != CAMERAS:
            parts += [part for _, part in leaves(terms) if _is_number(part)]
    if not parts or (parts[0].is_cpu and all(map(_is_sound, parts))):
        return None
    # In double precision no sum of finite numbers is infinite, and one number that is not finite makes every sum so.
    sums = [part.reshape(len(part), -1).sum(1, dtype=torch.float64) for part in parts]
    return ~torch.isfinite(sum(sums[1:], start=sums[0]))


def unsound_entry(observation: Observation, env_id: int, reward: torch.Tensor | None = None) -> str:
    """Return in words what is not finite in an env slot of `unsound_slots`."""
    for name, part in _numbers(observation):
        if not bool(torch.isfinite(part[env_id]).all()):
            return f"observation '{name}' holds NaN or infinity"
    return "the observation is not finite" if reward is None else f"the reward is {float(reward[env_id])}"


def without_unsound(observation: Observation, env_ids: Sequence[int]) -> Observation:
    """Return an observation with zeros for what is NaN or infinite in some env slots, which rest.

    A policy is shown all env slots, and may refuse numbers on which it need not act.
    """

    def cleaned(part: Any) -> Any:
        if not _is_number(part):
            return part
        part = part.clone()
        part[env_ids] = part[env_ids].nan_to_num(0.0, 0.0, 0.0)
        return part

    return {group: terms if group == CAMERAS else with_leaves(terms, cleaned) for group, terms in observation.items()}


def _numbers(observation: Observation) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the values of what is no picture; names of group ``policy`` are without it."""
    for (group, *path), part in leaves(observation):
        if group != CAMERAS and _is_number(part):
            yield ".".join(map(str, path if group == "policy" and path else (group, *path))), part


def _is_number(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.is_floating_point()


def _is_sound(part: torch.Tensor) -> bool:
    """Return whether all numbers on the CPU are finite. NumPy takes a third of the time, but has no bfloat16."""
    if part.dtype == torch.bfloat16 or part.requires_grad:
        return bool(torch.isfinite(part).all())
    return bool(np.isfinite(part.numpy()).all())
