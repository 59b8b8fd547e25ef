"""Scale the output of a learned policy to actions: unchanged, or as shares of their bounds."""

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


class ActionScaler:
    """Turns a network's output into actions of one environment.

    Args:
        spec: The environment's actions.
        scaling: How they follow from the output.
        clip: Largest absolute value that counts of the output (rsl_rl's ``clip_actions``), None for no limit.
        device: Where the output is.
    """

    def __init__(
        self, spec: ArraySpec, scaling: ActionScaling, *, clip: float | None = None, device: torch.device
    ) -> None:
        self._clip = clip
        self._scales = scaling is ActionScaling.WITHIN_BOUNDS
        low, high = (_bound(spec.low, -torch.inf, spec, device), _bound(spec.high, torch.inf, spec, device))
        self._bounded = torch.isfinite(low) & torch.isfinite(high)
        self._middle, self._half_range = (low + high) / 2, (high - low) / 2

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return the action that a network's output stands for.

        Args:
            output: Shape: (num_envs, action_dim).

        Returns:
            Shape: (num_envs, action_dim).
        """
        if self._clip is not None:
            output = output.clamp(-self._clip, self._clip)
        if not self._scales:
            return output
        within = self._middle + self._half_range * output.clamp(-1.0, 1.0)
        return torch.where(self._bounded, within, output)

    def output_of(self, action: torch.Tensor) -> torch.Tensor:
        """Return the output that an action stands for, -1 to 1 where actions have bounds.

        Args:
            action: Shape: (..., action_dim).

        Returns:
            Shape: (..., action_dim). What lies beyond the bounds is taken for the bound.
        """
        if not self._scales:
            return action
        share = (action - self._middle) / self._half_range.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self._bounded, share.clamp(-1.0, 1.0), action)


def _bound(values: tuple[float, ...] | None, without: float, spec: ArraySpec, device: torch.device) -> torch.Tensor:
    if values is None:
        return torch.full(spec.shape, without, device=device)
    return torch.as_tensor(values, dtype=torch.float32, device=device)
