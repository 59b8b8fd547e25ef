"""rsl_rl's PPO for any number of ranks, which learn as one process would from all their samples."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from rsl_rl.algorithms import PPO as RslRlPPO  # noqa: N811  an acronym, as rsl_rl has it
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from isaaclab_arena.training.learner.algorithms.gradient_exchange import GradientExchange
from isaaclab_arena.training.learner.algorithms.normalisation import normalise_over_ranks, normalised_over_ranks

_ADAPTIVE = "adaptive"
_OF_ALL_RANKS = "adaptive, of all ranks"
_LOWEST_RATE, _HIGHEST_RATE, _RATE_FACTOR = 1e-5, 1e-2, 1.5
"""As rsl_rl has them."""


class PPO(RslRlPPO):
    """Proximal policy optimisation (Schulman et al., arXiv:1707.06347) as rsl_rl has it, with what ranks need.

    Advantages are normalised over the samples of all ranks, so that N ranks with n env slots each learn what one
    process with N·n env slots learns from the same samples. The ranks exchange one message for each mini-batch: the
    gradient, with the KL divergence that the adaptive learning rate follows.

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
        self._exchange = GradientExchange(period=grad_sync_period, bucket_mb=self.grad_reduce_bucket_mb)
        self._mini_batch = RolloutStorage.Batch()
        if not self.is_multi_gpu:
            return
        for network in (self.actor, self.critic):
            normalise_over_ranks(network)
            network.to(self.device)
        if schedule == _ADAPTIVE and self.desired_kl is not None:
            # rsl_rl would send two messages for each mini-batch, before the backward pass; see `reduce_parameters`.
            self.schedule = _OF_ALL_RANKS
            for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
                setattr(self.storage, name, self._remembering(getattr(self.storage, name)))

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
        """Learn from the stored samples, and return the mean losses of this rank."""
        self._exchange.begin_update(self.num_learning_epochs * self.num_mini_batches)
        return super().update()

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks; rsl_rl calls it after each backward pass where there are several."""
        parameters = [*chain(self.actor.parameters(), self.critic.parameters())]
        optimizers = [self.optimizer]
        if self.rnd:
            parameters += self.rnd.predictor.parameters()
            optimizers.append(self.rnd.optimizer)
        if self.schedule != _OF_ALL_RANKS:
            self._exchange.exchange(parameters, *optimizers)
            return
        divergence = self._divergence()
        self._exchange.exchange(parameters, *optimizers, beside=[divergence])
        self._adapt_learning_rate(divergence.item())

    def _remembering(self, batches: Callable[..., Iterator[RolloutStorage.Batch]]) -> Callable[..., Iterator[Any]]:
        """Return a generator of mini-batches that leaves the one in use in ``_mini_batch``."""

        def remembering(*args: Any, **kwargs: Any) -> Iterator[RolloutStorage.Batch]:
            for self._mini_batch in batches(*args, **kwargs):
                yield self._mini_batch

        return remembering

    @torch.no_grad()
    def _divergence(self) -> torch.Tensor:
        """Return how far the policy is from the one that took this rank's mini-batch, as rsl_rl has it. Shape: ()."""
        before = self._mini_batch.old_distribution_params or ()
        # Mirrored samples, of an augmented mini-batch, follow those that were taken.
        now = tuple(
            parameter[: len(taken)]
            for parameter, taken in zip(self.actor.output_distribution_params, before, strict=True)
        )
        return self.actor.get_kl_divergence(before, now).mean()

    def _adapt_learning_rate(self, divergence: float) -> None:
        """Follow the divergence of all ranks by rsl_rl's rule; they all come to the same learning rate."""
        if divergence > self.desired_kl * 2.0:
            self.learning_rate = max(_LOWEST_RATE, self.learning_rate / _RATE_FACTOR)
        elif 0.0 < divergence < self.desired_kl / 2.0:
            self.learning_rate = min(_HIGHEST_RATE, self.learning_rate * _RATE_FACTOR)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate


def falling_learning_rate(first: float, iteration: int, max_iterations: int) -> float:
    """Return a learning rate that falls in equal steps, and would be zero after the last iteration.

    Args:
        first: That of the first iteration.
        iteration: Counted from 0; the same number on all ranks, however many there are.
        max_iterations: Length of the training.
    """
    return first * max(0.0, 1 - iteration / max(1, max_iterations))
