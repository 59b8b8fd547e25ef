"""Flow matching between noise and actions, as pure functions.

The path is a straight line: at flow time 0 there is noise, at 1 the action, and the network learns the line's velocity.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def draw_flow_times(uniform: Tensor, *, alpha: float, longest: float) -> Tensor:
    """Map uniform numbers (batch,) in [0, 1) to flow times (batch,) up to `longest`; a larger `alpha` prefers noise."""
    # ``1 - time / longest`` is Beta(alpha, 1), as in GR00T and pi0. Its distribution function is ``x ** alpha``, so the
    # inverse maps numbers from any generator. Near noise the direction is hardest to predict.
    return longest * (1.0 - uniform ** (1.0 / alpha))


def interpolate(noise: Tensor, action: Tensor, time: Tensor) -> Tensor:
    """Return the points at flow times (batch,) on the lines from noise to action, both (batch, horizon, action_dim)."""
    weight = time.view(-1, 1, 1)
    return (1.0 - weight) * noise + weight * action


def masked_mean_square(difference: Tensor, mask: Tensor) -> Tensor:
    """Return the scalar mean square where `mask` is True, 0 for an empty mask; shapes: (batch, horizon, action_dim)."""
    weight = mask.to(difference.dtype)
    return (difference.square() * weight).sum() / weight.sum().clamp(min=1.0)


def integrate(velocity: Callable[[Tensor, Tensor], Tensor], noise: Tensor, *, num_steps: int) -> Tensor:
    """Follow a velocity field from noise (batch, horizon, action_dim) to actions in `num_steps` equal Euler steps."""
    action = noise
    for step in range(num_steps):
        time = torch.full((len(noise),), step / num_steps, device=noise.device, dtype=torch.float32)
        action = action + velocity(action, time) / num_steps
    return action


def towards(
    velocity: Callable[[Tensor, Tensor], Tensor], target: Tensor, weights: Tensor, *, max_guidance: float = 5.0
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a velocity field that is pulled towards planned actions `target`, with `weights` from 0 to 1."""

    # This is the guided inpainting of real-time chunking: Black, Galliker and Levine, "Real-Time Execution of Action
    # Chunking Flow Policies", 2025, arXiv 2506.07339, equations 2 to 4. At a point A of flow time t the network
    # predicts the action ``A + (1 - t) v(A, t)`` (equation 3). Its weighted difference to the target goes back through
    # the network as a vector-Jacobian product, and counts ``min(max_guidance, (1 - t) / (t r**2))`` times (equation 2)
    # with ``r**2 = (1 - t)**2 / (t**2 + (1 - t)**2)`` (equation 4). The paper recommends a ``max_guidance`` of 5.
    def guided(action: Tensor, time: Tensor) -> Tensor:
        with torch.enable_grad():
            point = action.detach().requires_grad_()
            speed = velocity(point, time)
            predicted = point + (1.0 - time).view(-1, 1, 1) * speed
            lacking = (target - predicted.detach()) * weights
            (pull,) = torch.autograd.grad(predicted, point, lacking)
        return speed.detach() + _guidance(time, max_guidance).view(-1, 1, 1) * pull

    return guided


def _guidance(time: Tensor, most: float) -> Tensor:
    """Return the factor of the pull at flow times; `most` at time 0, where it would be infinite."""
    remaining = 1.0 - time
    return ((time.square() + remaining.square()) / (time * remaining)).clamp(max=most)


def seeded_noise(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw float32 standard normal noise (batch, *shape), each entry from its own 64-bit seed only."""
    # The CPU draws, so the noise is the same for every device. Its generator uses only the lower 32 bits of a seed.
    noise = torch.empty(len(seeds), *shape)
    for entry, seed in zip(noise, seeds, strict=True):
        entry.normal_(generator=torch.Generator().manual_seed(int(seed)))
    return noise
