"""PPO for any number of ranks, which learn as one process would, and the exchange of gradients between them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from rsl_rl.algorithms import PPO as RslRlPPO  # noqa: N811  an acronym, as rsl_rl has it
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from isaaclab_arena.distributed.ranks import average_over_ranks_, gather_from_ranks


class GradientExchange:
    """Averages gradients over ranks after every `period` mini-batches; bounds each message to `bucket_mb` [MB]."""

    def __init__(self, *, period: int, bucket_mb: float = 25.0) -> None:
        # Period 1: all ranks make the same optimiser step on the mean of their gradients. A longer period lets each
        # rank continue by itself, and averages weights and optimiser state at the boundary (local SGD,
        # arXiv:1805.09767).
        # A boundary then sends four times as many bytes in one message. So a longer period saves messages, and saves
        # bytes from a period of 5 on.
        self._period = period
        self._bucket_mb = bucket_mb
        self._left = self._done = 0

    def begin_update(self, num_mini_batches: int) -> None:
        """Set the number of mini-batches of the update that begins now."""
        self._left, self._done = num_mini_batches, 0

    def exchange(
        self,
        parameters: Sequence[nn.Parameter],
        *optimizers: torch.optim.Optimizer,
        beside: Sequence[torch.Tensor] = (),
    ) -> None:
        """Average over ranks if this mini-batch is a boundary; call it between backward pass and optimiser step."""
        self._left -= 1
        self._done += 1
        # ``beside`` is averaged after every mini-batch, boundary or not; at a boundary it shares the message.
        together = list(beside)
        # The last mini-batch of an update is always a boundary, so that all ranks act with the same policy.
        is_boundary = self._left <= 0 or self._done % self._period == 0
        for parameter in parameters if is_boundary else ():
            if parameter.grad is not None:
                together.append(parameter.grad)
            # Since the last boundary, ranks that step alone have drifted apart in weights and moments too.
            if self._period != 1:
                together.append(parameter.data)
                together += [
                    value
                    for optimizer in optimizers
                    for value in optimizer.state.get(parameter, {}).values()
                    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim
                ]
        if not together:
            return

        # All ranks pack the tensors in the same order, and send them in messages of limited size.
        with torch.no_grad():
            packed = torch.cat([tensor.reshape(-1) for tensor in together])
            for message in packed.split(max(1, int(self._bucket_mb * 1024 * 1024) // packed.element_size())):
                average_over_ranks_(message)
            for tensor, averaged in zip(together, packed.split([tensor.numel() for tensor in together]), strict=True):
                tensor.copy_(averaged.view_as(tensor))


EPSILON = 1e-8


def message_of(values: torch.Tensor) -> torch.Tensor:
    """Return number, sum and squared deviations of samples (samples, features). Shape: (3, features), float64."""
    own = values.to(torch.float64)
    total = own.sum(dim=0)
    squares = ((own - total / len(own)) ** 2).sum(dim=0)
    return torch.stack((torch.full_like(total, len(own)), total, squares))


def moments_of(messages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return number (), mean and squared deviations (features,) of samples from messages (n, 3, features)."""
    # Chan et al.'s parallel variance: squares around each rank's mean, plus the shift of that mean to the common one.
    counts, totals, squares = messages.unbind(dim=1)
    mean = totals.sum(dim=0) / counts.sum(dim=0)
    around_mean = squares + counts * (totals / counts - mean) ** 2
    return counts[:, 0].sum(), mean, around_mean.sum(dim=0)


def moments_over_ranks(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same `moments_of` all ranks' samples on each, from each rank's samples (>= 1, features)."""
    return moments_of(torch.stack(gather_from_ranks(message_of(values))).to(values.device))


def normalised_over_ranks(advantages: torch.Tensor) -> torch.Tensor:
    """Scale advantages of any shape to mean 0 and standard deviation 1 over the samples of all ranks."""
    count, mean, squares = moments_over_ranks(advantages.reshape(-1, 1))
    # Unbiased, as torch's own standard deviation, with which rsl_rl normalises.
    scale = torch.sqrt(squares / (count - 1).clamp(min=1)) + EPSILON
    return ((advantages.to(torch.float64) - mean) / scale).to(advantages.dtype)


class RanksNormalization(EmpiricalNormalization):
    """rsl_rl's observation normaliser, which sends one message instead of rsl_rl's three."""

    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Update the statistics with the samples of all ranks, shape (samples, features); every rank calls it."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        count, mean, squares = moments_over_ranks(x)
        mean, variance = mean.to(x.dtype), (squares / count).to(x.dtype)
        self.count += count.to(torch.long)
        rate = (count / self.count).to(x.dtype)
        difference = mean - self._mean
        self._mean += rate * difference
        self._var += rate * (variance - self._var + difference * (mean - self._mean))
        self._std = torch.sqrt(self._var)


def normalise_over_ranks(network: nn.Module) -> None:
    """Normalise a network's observations over all ranks. Call it before the network has seen any."""
    found = getattr(network, "obs_normalizer", None)
    if type(found) is EmpiricalNormalization:
        network.obs_normalizer = RanksNormalization(found.mean.shape, eps=found.eps, until=found.until)


_OF_ALL_RANKS = "adaptive, of all ranks"


class PPO(RslRlPPO):
    """rsl_rl's PPO (Schulman et al., arXiv:1707.06347), with gradients, KL and advantages over all ranks."""

    def __init__(self, *args: Any, grad_sync_period: int = 1, schedule: str = "adaptive", **kwargs: Any) -> None:
        # Advantages are normalised over the samples of all ranks. So N ranks with n env slots each learn what one
        # process with N·n env slots learns from the same samples.
        # Ranks exchange one message per mini-batch: the gradient, with the KL divergence that the adaptive rate
        # follows.
        # ``schedule``: ``adaptive`` follows the KL divergence; ``linear`` is followed by `Learner`; or ``fixed``.
        super().__init__(*args, schedule=schedule, **kwargs)
        self._exchange = GradientExchange(period=grad_sync_period, bucket_mb=self.grad_reduce_bucket_mb)
        self._mini_batch = RolloutStorage.Batch()
        if not self.is_multi_gpu:
            return
        for network in (self.actor, self.critic):
            normalise_over_ranks(network)
            network.to(self.device)
        if schedule == "adaptive" and self.desired_kl is not None:
            # rsl_rl would send two messages for each mini-batch, before the backward pass; see `reduce_parameters`.
            self.schedule = _OF_ALL_RANKS

            # `reduce_parameters` has no arguments, so the generators of mini-batches note the one in use.
            def noting(generator: Callable[..., Iterator[RolloutStorage.Batch]], *args: Any, **kwargs: Any) -> Any:
                for self._mini_batch in generator(*args, **kwargs):
                    yield self._mini_batch

            for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
                setattr(self.storage, name, partial(noting, getattr(self.storage, name)))

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; the latter are normalised over all ranks' samples."""
        # Keep rsl_rl from normalising over this rank's samples only.
        per_mini_batch, self.normalize_advantage_per_mini_batch = self.normalize_advantage_per_mini_batch, True
        try:
            super().compute_returns(obs)
        finally:
            self.normalize_advantage_per_mini_batch = per_mini_batch
        if not per_mini_batch:
            self.storage.advantages = normalised_over_ranks(self.storage.advantages)

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return this rank's mean losses."""
        self._exchange.begin_update(self.num_learning_epochs * self.num_mini_batches)
        return super().update()

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks; rsl_rl calls it after each backward pass if there are several ranks."""
        parameters = [*chain(self.actor.parameters(), self.critic.parameters())]
        optimizers = [self.optimizer]
        if self.rnd:
            parameters += self.rnd.predictor.parameters()
            optimizers.append(self.rnd.optimizer)
        if self.schedule != _OF_ALL_RANKS:
            self._exchange.exchange(parameters, *optimizers)
            return

        # The gradients' message also holds the mean KL divergence from the policy that took the mini-batch.
        before = self._mini_batch.old_distribution_params or ()
        with torch.no_grad():
            # In an augmented mini-batch, mirrored samples follow those that were taken.
            now = tuple(
                parameter[: len(taken)]
                for parameter, taken in zip(self.actor.output_distribution_params, before, strict=True)
            )
            mean_kl = self.actor.get_kl_divergence(before, now).mean()
        self._exchange.exchange(parameters, *optimizers, beside=[mean_kl])

        # Every rank adapts the learning rate to the same divergence, by the rule and the numbers of rsl_rl.
        divergence, rate = mean_kl.item(), self.learning_rate
        if divergence > self.desired_kl * 2.0:
            rate = max(1e-5, rate / 1.5)
        elif 0.0 < divergence < self.desired_kl / 2.0:
            rate = min(1e-2, rate * 1.5)
        set_learning_rate(self, rate)


def set_learning_rate(algorithm: Any, rate: float) -> None:
    """Set the learning rate of an algorithm and its optimiser."""
    algorithm.learning_rate = rate
    for group in algorithm.optimizer.param_groups:
        group["lr"] = rate
