"""rsl_rl's PPO for any number of ranks, which learn as one process would from all their samples."""

from itertools import chain
from typing import Any

import torch
from rsl_rl.algorithms import PPO as RslRlPPO  # noqa: N811  an acronym, as rsl_rl has it
from tensordict import TensorDict

from isaaclab_arena.distributed.collectives import average_over_ranks_, sum_over_ranks
from isaaclab_arena.training.learner.algorithms.gradient_exchange import GradientExchange

_EPSILON = 1e-8


class PPO(RslRlPPO):
    """Proximal policy optimisation (Schulman et al., arXiv:1707.06347) as rsl_rl has it, with what ranks need.

    Advantages are normalised over the samples of all ranks, so that N ranks with n env slots each learn what one
    process
    with N·n env slots learns from the same samples.

    Args:
        args: As rsl_rl's.
        grad_sync_period: Mini-batches between two exchanges among ranks; see `GradientExchange`.
        schedule: Of the learning rate: ``adaptive`` follows the KL divergence, ``fixed``, or ``linear``, which falls
            to zero at ``max_iterations``.
        max_iterations: Length of the training, for ``linear``.
        kwargs: As rsl_rl's.
    """

    def __init__(
        self,
        *args: Any,
        grad_sync_period: int = 1,
        schedule: str = "adaptive",
        max_iterations: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, schedule=schedule, **kwargs)
        self._first_learning_rate = self.learning_rate
        self._max_iterations = max_iterations
        self._exchange = GradientExchange(
            period=grad_sync_period, world_size=self.gpu_world_size, bucket_mb=self.grad_reduce_bucket_mb
        )

    def begin_iteration(self, iteration: int) -> None:
        """Set the learning rate of an iteration, counted from 0, where it follows a schedule."""
        if self.schedule == "linear":
            self.learning_rate = falling_learning_rate(self._first_learning_rate, iteration, self._max_iterations)
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; the latter are normalised over all ranks' samples."""
        per_mini_batch, self.normalize_advantage_per_mini_batch = self.normalize_advantage_per_mini_batch, True
        try:
            super().compute_returns(obs)
        finally:
            self.normalize_advantage_per_mini_batch = per_mini_batch
        if not per_mini_batch:
            self.storage.advantages = normalised_over_ranks(self.storage.advantages)

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return the mean losses of all ranks."""
        self._exchange.begin_update(self.num_learning_epochs * self.num_mini_batches)
        return mean_losses(super().update(), self.device)

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks; rsl_rl calls it after each backward pass where there are several."""
        parameters = [*chain(self.actor.parameters(), self.critic.parameters())]
        optimizers = [self.optimizer]
        if self.rnd:
            parameters += self.rnd.predictor.parameters()
            optimizers.append(self.rnd.optimizer)
        self._exchange.exchange(parameters, *optimizers)


def falling_learning_rate(first: float, iteration: int, max_iterations: int) -> float:
    """Return a learning rate that falls in equal steps, and would be zero after the last iteration.

    Args:
        first: That of the first iteration.
        iteration: Counted from 0; the same number on all ranks, however many there are.
        max_iterations: Length of the training.
    """
    return first * max(0.0, 1 - iteration / max(1, max_iterations))


def mean_losses(losses: dict[str, float], device: str) -> dict[str, float]:
    """Return the mean over ranks of this rank's losses."""
    values = torch.tensor(list(losses.values()), dtype=torch.float64, device=device)
    average_over_ranks_(values)
    return dict(zip(losses, values.tolist(), strict=True))


def normalised_over_ranks(advantages: torch.Tensor) -> torch.Tensor:
    """Return advantages with mean 0 and standard deviation 1 over the samples of all ranks.

    Args:
        advantages: This rank's. Any shape.
    """
    values = advantages.to(torch.float64)
    number = torch.full_like(values.sum(), values.numel())
    count, total = sum_over_ranks(torch.stack((number, values.sum())))
    mean = total / count
    deviation = sum_over_ranks(((values - mean) ** 2).sum())
    # Unbiased, as torch's own standard deviation, with which rsl_rl normalises.
    scale = torch.sqrt(deviation / (count - 1).clamp(min=1)) + _EPSILON
    return ((values - mean) / scale).to(advantages.dtype)
