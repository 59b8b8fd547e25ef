"""Flow matching between noise and actions, as pure functions.

The path is a straight line: at flow time 0 there is noise, at 1 the action, and the network learns the line's velocity.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def draw_flow_times(uniform: Tensor, *, alpha: float, longest: float) -> Tensor:
    """Turn uniform numbers into flow times that prefer noise, where the direction is hardest to predict.

    ``1 - time / longest`` is Beta(alpha, 1), as in GR00T and pi0; its distribution function is ``x ** alpha``, so its
    inverse makes the draw from any generator.

    Args:
        uniform: Uniform on [0, 1). Shape: (batch,).
        alpha: Larger means more noise.
        longest: Largest flow time, in [0, 1].

    Returns:
        Shape: (batch,).
    """
    return longest * (1.0 - uniform ** (1.0 / alpha))


def interpolate(noise: Tensor, action: Tensor, time: Tensor) -> Tensor:
    """Return the points on the lines from noise to action.

    Args:
        noise: Shape: (batch, horizon, action_dim).
        action: Shape: (batch, horizon, action_dim).
        time: Flow time. Shape: (batch,).
    """
    weight = time.view(-1, 1, 1)
    return (1.0 - weight) * noise + weight * action


def masked_mean_square(difference: Tensor, mask: Tensor) -> Tensor:
    """Return the mean square of the masked-in values, as a scalar; 0 for an empty mask.

    Args:
        difference: Shape: (batch, horizon, action_dim).
        mask: True where there is an action, False in padding. Shape: (batch, horizon, action_dim).
    """
    weight = mask.to(difference.dtype)
    return (difference.square() * weight).sum() / weight.sum().clamp(min=1.0)


def integrate(velocity: Callable[[Tensor, Tensor], Tensor], noise: Tensor, *, num_steps: int) -> Tensor:
    """Follow a velocity field from noise to actions in equal Euler steps.

    Args:
        velocity: Gives the velocity at points of shape (batch, horizon, action_dim) and flow times of shape (batch,).
        noise: Start of the flow. Shape: (batch, horizon, action_dim).
        num_steps: Number of steps.

    Returns:
        Shape: (batch, horizon, action_dim).
    """
    action = noise
    for step in range(num_steps):
        time = torch.full((len(noise),), step / num_steps, device=noise.device, dtype=torch.float32)
        action = action + velocity(action, time) / num_steps
    return action


def towards(
    velocity: Callable[[Tensor, Tensor], Tensor], target: Tensor, weights: Tensor, *, max_guidance: float = 5.0
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a velocity field that is also pulled towards actions which are planned already.

    This is the guided inpainting of real-time chunking: Black, Galliker and Levine, "Real-Time Execution of Action
    Chunking Flow Policies", 2025, arXiv 2506.07339, equations 2 to 4. At a point A of flow time t the network
    predicts the action ``A + (1 - t) v(A, t)`` (equation 3). What that lacks of the target, weighted, goes back through
    the network as a vector-Jacobian product, and counts ``min(max_guidance, (1 - t) / (t r**2))`` times (equation 2)
    with ``r**2 = (1 - t)**2 / (t**2 + (1 - t)**2)`` (equation 4).

    Args:
        velocity: The network's velocity; see `integrate`. Gradients flow through it.
        target: The planned actions. Shape: (batch, horizon, action_dim).
        weights: How strongly each number counts, 0 to 1. Shape: (batch, horizon, action_dim).
        max_guidance: The largest pull; the paper recommends 5.
    """

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
    """Return how many times the pull counts at flow times; the most at 0, where it would be infinite."""
    remaining = 1.0 - time
    return ((time.square() + remaining.square()) / (time * remaining)).clamp(max=most)


def seeded_noise(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw each batch entry's standard normal noise from its own seed; it does not depend on the other entries.

    The numbers are drawn on the CPU, so they are the same for every device.

    Args:
        seeds: One 64-bit integer per batch entry; torch's generator on the CPU uses only the lower 32 bits.
        shape: Shape of one entry.

    Returns:
        float32 of shape (batch, *shape).
    """
    noise = torch.empty(len(seeds), *shape)
    for entry, seed in zip(noise, seeds, strict=True):
        entry.normal_(generator=torch.Generator().manual_seed(int(seed)))
    return noise
