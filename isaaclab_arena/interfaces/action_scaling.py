"""What the numbers of a learned policy mean to an environment: its own actions, or shares of their bounds."""

from enum import StrEnum

import torch

from isaaclab_arena.interfaces.specs import ArraySpec


class ActionScaling(StrEnum):
    """How a network's output becomes an action.

    ``AS_IS`` leaves it as it is, as in Isaac Lab and mjlab, where environments scale. ``WITHIN_BOUNDS`` maps -1 and 1
    to the lowest and highest action of the environment and clips beyond; numbers without bounds stay as they are.
    """

    AS_IS = "as_is"
    WITHIN_BOUNDS = "within_bounds"


def scaled_action(
    output: torch.Tensor, spec: ArraySpec, scaling: ActionScaling, *, clip: float | None = None
) -> torch.Tensor:
    """Return the action that a network's output stands for.

    Args:
        output: Shape: (num_envs, action_dim).
        spec: The environment's actions.
        scaling: How they follow from the output.
        clip: Largest absolute value that counts of the output (rsl_rl's ``clip_actions``), None for no limit.

    Returns:
        Shape: (num_envs, action_dim).
    """
    if clip is not None:
        output = output.clamp(-clip, clip)
    if scaling is ActionScaling.AS_IS:
        return output
    unbounded = torch.full(spec.shape, torch.inf, dtype=output.dtype, device=output.device)
    low = -unbounded if spec.low is None else torch.as_tensor(spec.low, dtype=output.dtype, device=output.device)
    high = unbounded if spec.high is None else torch.as_tensor(spec.high, dtype=output.dtype, device=output.device)
    bounded = torch.isfinite(low) & torch.isfinite(high)
    low, high = torch.where(bounded, low, -1.0), torch.where(bounded, high, 1.0)
    within = (low + high) / 2 + (high - low) / 2 * output.clamp(-1.0, 1.0)
    return torch.where(bounded, within, output)
