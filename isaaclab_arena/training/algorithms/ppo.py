"""rsl_rl's PPO, the same on any number of ranks: one batch of all ranks' samples, and rarer exchange where wanted."""

from itertools import chain
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO as RslRlPPO  # noqa: N811  an acronym, as rsl_rl has it
from tensordict import TensorDict
from torch import nn

from isaaclab_arena.distributed.collectives import average_over_ranks_, sum_over_ranks

_EPSILON = 1e-8


class PPO(RslRlPPO):
    """Proximal policy optimisation (Schulman et al., arXiv:1707.06347) as rsl_rl has it, with what ranks need.

    Advantages are normalised over the samples of all ranks, so that N ranks with n rows each learn what one process
    with N·n rows learns from the same samples.

    Args:
        args: As rsl_rl's.
        grad_sync_period: Mini-batches between two exchanges among ranks. With 1, gradients are averaged for each. With
            more, ranks go on by themselves in between, and at the boundary weights and optimiser are averaged too
            (local SGD, arXiv:1805.09767). The last mini-batch of an update is always a boundary.
        schedule: ``adaptive`` follows the KL divergence; ``fixed``; ``linear`` falls to zero at ``max_iterations``.
        max_iterations: Length of the training, for ``linear``.
        kwargs: As rsl_rl's.
    """

    def __init__(
        self,
        *args: Any,
        grad_sync_period: int = 1,
        schedule: Literal["adaptive", "fixed", "linear"] = "adaptive",
        max_iterations: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, schedule=schedule, **kwargs)
        self.grad_sync_period = grad_sync_period
        self._first_learning_rate = self.learning_rate
        self._max_iterations = max_iterations
        self._mini_batches_done = 0

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; the latter are normalised over all ranks' samples."""
        per_mini_batch, self.normalize_advantage_per_mini_batch = self.normalize_advantage_per_mini_batch, True
        try:
            super().compute_returns(obs)
        finally:
            self.normalize_advantage_per_mini_batch = per_mini_batch
        if not per_mini_batch:
            self.storage.advantages = normalised_over_ranks(self.storage.advantages)

    def begin_iteration(self, iteration: int) -> None:
        """Set the learning rate of an iteration, where it follows a schedule; counted from 0."""
        if self.schedule == "linear" and self._max_iterations:
            self.set_learning_rate(self._first_learning_rate * max(0.0, 1 - iteration / self._max_iterations))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use another learning rate from now on."""
        self.learning_rate = learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return the mean losses of all ranks."""
        self._mini_batches_done = 0
        losses = super().update()
        values = torch.tensor(list(losses.values()), dtype=torch.float64)
        average_over_ranks_(values)
        return dict(zip(losses, values.tolist(), strict=True))

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks, where this mini-batch is a boundary; called after each backward pass."""
        self._mini_batches_done += 1
        is_last = self._mini_batches_done == self.num_learning_epochs * self.num_mini_batches
        if self.grad_sync_period == 1:
            super().reduce_parameters()
        elif is_last or self._mini_batches_done % self.grad_sync_period == 0:
            super().reduce_parameters()
            self._average_state()

    @torch.no_grad()
    def _average_state(self) -> None:
        """Average weights and the optimiser's moments, which have drifted apart since the last boundary."""
        for parameter in self.trained_parameters():
            average_over_ranks_(parameter.data)
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
                    average_over_ranks_(value)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return what the optimiser changes, in its order."""
        return list(chain(self.actor.parameters(), self.critic.parameters()))


def normalised_over_ranks(advantages: torch.Tensor) -> torch.Tensor:
    """Return advantages with mean 0 and standard deviation 1 over the samples of all ranks.

    Args:
        advantages: This rank's. Any shape.
    """
    values = advantages.to(torch.float64)
    count, total = sum_over_ranks(torch.stack((torch.full_like(values.sum(), values.numel()), values.sum())))
    mean = total / count
    deviation = sum_over_ranks(((values - mean) ** 2).sum())
    # Unbiased, as torch's own standard deviation, with which rsl_rl normalises.
    scale = torch.sqrt(deviation / (count - 1).clamp(min=1)) + _EPSILON
    return ((values - mean) / scale).to(advantages.dtype)
