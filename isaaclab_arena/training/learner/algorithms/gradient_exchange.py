"""Averages gradients, or weights and optimiser state, over ranks."""

from collections.abc import Sequence

import torch
from rsl_rl.utils import reduce_gradients_in_buckets
from torch import nn

from isaaclab_arena.distributed.collectives import average_over_ranks_


class GradientExchange:
    """Averages gradients over ranks, for each mini-batch or more rarely.

    With a period of 1 all ranks make the same optimiser step on the mean of their gradients. With a longer one each
    goes on by itself in between, and at a boundary weights and optimiser are averaged first (local SGD,
    arXiv:1805.09767).
    The last mini-batch of an update is always a boundary, so that all ranks act with the same policy. A boundary sends
    four times as much in one message, so a longer period spares messages, and bytes from a period of 5 on.

    Args:
        period: Mini-batches between two exchanges.
        world_size: Number of ranks.
        bucket_mb: How much is sent at once, at most [MB].
    """

    def __init__(self, *, period: int, world_size: int, bucket_mb: float = 25.0) -> None:
        self._period = period
        self._world_size = world_size
        self._bucket_mb = bucket_mb
        self._left = 0
        self._done = 0

    def begin_update(self, num_mini_batches: int) -> None:
        """Say how many mini-batches the update has that begins now."""
        self._left = num_mini_batches
        self._done = 0

    def exchange(self, parameters: Sequence[nn.Parameter], *optimizers: torch.optim.Optimizer) -> None:
        """Average, where this mini-batch is a boundary; called between the backward pass and the optimiser's step.

        Args:
            parameters: Those whose gradients were just computed, in the same order on all ranks.
            optimizers: Their optimisers.
        """
        self._left -= 1
        self._done += 1
        if self._left > 0 and self._done % self._period:
            return
        if self._period == 1:
            reduce_gradients_in_buckets(parameters, self._world_size, self._bucket_mb)
        else:
            _average_in_one_message(_what_has_drifted(parameters, optimizers))


def _what_has_drifted(
    parameters: Sequence[nn.Parameter], optimizers: Sequence[torch.optim.Optimizer]
) -> list[torch.Tensor]:
    """Return gradients, weights and the optimisers' moments, in the same order on all ranks."""
    found: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            found.append(parameter.grad)
        found.append(parameter.data)
        found += [
            value
            for optimizer in optimizers
            for value in optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim
        ]
    return found


@torch.no_grad()
def _average_in_one_message(tensors: Sequence[torch.Tensor]) -> None:
    packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
    average_over_ranks_(packed)
    for tensor, averaged in zip(tensors, packed.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(averaged.view_as(tensor))
