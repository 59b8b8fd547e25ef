"""Averages gradients, or weights and optimiser state, over ranks."""

from collections.abc import Sequence

import torch
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
        bucket_mb: How much is sent at once, at most [MB].
    """

    def __init__(self, *, period: int, bucket_mb: float = 25.0) -> None:
        self._period = period
        self._bucket_mb = bucket_mb
        self._left = 0
        self._done = 0

    def begin_update(self, num_mini_batches: int) -> None:
        """Say how many mini-batches the update has that begins now."""
        self._left = num_mini_batches
        self._done = 0

    def exchange(
        self,
        parameters: Sequence[nn.Parameter],
        *optimizers: torch.optim.Optimizer,
        beside: Sequence[torch.Tensor] = (),
    ) -> None:
        """Average, where this mini-batch is a boundary; called between the backward pass and the optimiser's step.

        Args:
            parameters: Those whose gradients were just computed, in the same order on all ranks.
            optimizers: Their optimisers.
            beside: What is averaged after every mini-batch, boundary or not, and needs no message of its own at one.
        """
        self._left -= 1
        self._done += 1
        together = list(beside)
        if self._period == 1:
            together += _gradients(parameters)
        elif self._left <= 0 or self._done % self._period == 0:
            together += _what_has_drifted(parameters, optimizers)
        if together:
            _average_together(together, self._bucket_mb)


def _gradients(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _what_has_drifted(
    parameters: Sequence[nn.Parameter], optimizers: Sequence[torch.optim.Optimizer]
) -> list[torch.Tensor]:
    """Return gradients, weights and the optimisers' moments, in the same order on all ranks."""
    found: list[torch.Tensor] = []
    for parameter in parameters:
        found += [*_gradients([parameter]), parameter.data]
        found += [
            value
            for optimizer in optimizers
            for value in optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim
        ]
    return found


@torch.no_grad()
def _average_together(tensors: Sequence[torch.Tensor], bucket_mb: float) -> None:
    """Replace tensors by the mean of the ranks' tensors, in one message, or in several of at most ``bucket_mb`` MB."""
    packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
    for message in packed.split(max(1, int(bucket_mb * 1024 * 1024) // packed.element_size())):
        average_over_ranks_(message)
    for tensor, averaged in zip(tensors, packed.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(averaged.view_as(tensor))
