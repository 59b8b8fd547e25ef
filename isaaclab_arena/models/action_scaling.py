"""Scale the output of a learned policy to actions: unchanged, or as shares of their bounds."""

from enum import StrEnum

import torch

from isaaclab_arena.interfaces.specs import ArraySpec


class ActionScaling(StrEnum):
    """The mapping from a network's output to an action."""

    # Unchanged, as in Isaac Lab and mjlab, where environments scale.
    AS_IS = "as_is"
    # Map -1 and 1 to the environment's lowest and highest action, and clip beyond; numbers without bounds stay.
    WITHIN_BOUNDS = "within_bounds"


class ActionScaler:
    """Turns a network's output into actions of one environment."""

    def __init__(
        self, spec: ArraySpec, scaling: ActionScaling, *, clip: float | None = None, device: torch.device
    ) -> None:
        # rsl_rl's ``clip_actions``: limit of the absolute output, None for no limit.
        self._clip = clip
        self._scales = scaling is ActionScaling.WITHIN_BOUNDS
        low, high = (_bound(spec.low, -torch.inf, spec, device), _bound(spec.high, torch.inf, spec, device))
        self._bounded = torch.isfinite(low) & torch.isfinite(high)
        self._middle, self._half_range = (low + high) / 2, (high - low) / 2

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return the action for a network's output. Shapes: (num_envs, action_dim)."""
        if self._clip is not None:
            output = output.clamp(-self._clip, self._clip)
        if not self._scales:
            return output
        within = self._middle + self._half_range * output.clamp(-1.0, 1.0)
        return torch.where(self._bounded, within, output)

    def output_of(self, action: torch.Tensor) -> torch.Tensor:
        """Return the output for an action (..., action_dim), clipped to [-1, 1] if actions have bounds."""
        if not self._scales:
            return action
        share = (action - self._middle) / self._half_range.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self._bounded, share.clamp(-1.0, 1.0), action)


def _bound(values: tuple[float, ...] | None, without: float, spec: ArraySpec, device: torch.device) -> torch.Tensor:
    if values is None:
        return torch.full(spec.shape, without, device=device)
    return torch.as_tensor(values, dtype=torch.float32, device=device)
