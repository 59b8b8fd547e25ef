"""Normalises observations and advantages over the samples of all ranks, in one message each."""

from dataclasses import dataclass

import torch
from rsl_rl.modules import EmpiricalNormalization
from torch import nn

from isaaclab_arena.distributed.collectives import gather_from_ranks

_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Moments of the samples of all ranks, the same bits on all of them.

    Attributes:
        count: Number of samples, at least 1. Shape: (), float64.
        mean: Shape: (features,), float64.
        squares: Sum of squared deviations from the mean. Shape: (features,), float64.
    """

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor


def moments_over_ranks(values: torch.Tensor) -> Moments:
    """Return the moments of the samples of all ranks; every rank calls it.

    Args:
        values: This rank's samples, at least one. Shape: (samples, features); the same features on every rank.
    """
    gathered = torch.stack(gather_from_ranks(message_of(values)))
    return moments_of(gathered.to(values.device))


def message_of(values: torch.Tensor) -> torch.Tensor:
    """Return what a rank tells of its samples: their number, their sum, and their squares around their own mean.

    Args:
        values: Shape: (samples, features).

    Returns:
        Shape: (3, features), float64.
    """
    own = values.to(torch.float64)
    total = own.sum(dim=0)
    squares = ((own - total / len(own)) ** 2).sum(dim=0)
    return torch.stack((torch.full_like(total, len(own)), total, squares))


def moments_of(messages: torch.Tensor) -> Moments:
    """Return the moments of all samples from what each rank tells of its own; see `message_of`.

    Args:
        messages: Shape: (world_size, 3, features).
    """
    counts, totals, squares = messages.unbind(dim=1)
    mean = totals.sum(dim=0) / counts.sum(dim=0)
    around_mean = squares + counts * (totals / counts - mean) ** 2
    return Moments(count=counts[:, 0].sum(), mean=mean, squares=around_mean.sum(dim=0))


def normalised_over_ranks(advantages: torch.Tensor) -> torch.Tensor:
    """Return advantages with mean 0 and standard deviation 1 over the samples of all ranks.

    Args:
        advantages: This rank's. Any shape.
    """
    of_all = moments_over_ranks(advantages.reshape(-1, 1))
    # Unbiased, as torch's own standard deviation, with which rsl_rl normalises.
    scale = torch.sqrt(of_all.squares / (of_all.count - 1).clamp(min=1)) + _EPSILON
    return ((advantages.to(torch.float64) - of_all.mean) / scale).to(advantages.dtype)


class RanksNormalization(EmpiricalNormalization):
    """rsl_rl's normaliser of observations, which sends one message where rsl_rl's sends three."""

    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Learn from the samples of all ranks; every rank calls it. Shape: (samples, features)."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        of_all = moments_over_ranks(x)
        mean, variance = of_all.mean.to(x.dtype), (of_all.squares / of_all.count).to(x.dtype)
        self.count += of_all.count.to(torch.long)
        rate = (of_all.count / self.count).to(x.dtype)
        difference = mean - self._mean
        self._mean += rate * difference
        self._var += rate * (variance - self._var + difference * (mean - self._mean))
        self._std = torch.sqrt(self._var)


def normalise_over_ranks(network: nn.Module) -> None:
    """Let a network that has seen nothing yet normalise its observations over the samples of all ranks."""
    found = getattr(network, "obs_normalizer", None)
    if type(found) is EmpiricalNormalization:
        network.obs_normalizer = RanksNormalization(found.mean.shape, eps=found.eps, until=found.until)
