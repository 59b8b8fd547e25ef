"""The collectives of training; every rank must call them together, and a single process gets its own value."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from isaaclab_arena.distributed.neighbours import Neighbours, connect_neighbours
from isaaclab_arena.distributed.ranks import Ranks

_CONNECTED: list[Neighbours] = []
"""The connections that collectives use, the last ones of these; without any they use the process group."""

_OF_FAILED: list[Neighbours] = []
"""Connections of trainings that failed, open until the process ends. Before that the rank tells the launcher why it
failed, and the others, which fail at once when a connection closes, tell it only afterwards."""


@contextmanager
def between_neighbours(ranks: Ranks, *, timeout_s: float) -> Iterator[None]:
    """Use Unix sockets for collectives of the ``with`` block, where `connect_neighbours` finds that they serve.

    Every rank calls it. The sum of the tensors of three or more ranks may differ from gloo's in its last bits.

    Args:
        ranks: All ranks; their process group exists.
        timeout_s: How long a collective waits for the other ranks [s].
    """
    neighbours = connect_neighbours(ranks, timeout_s=timeout_s)
    if neighbours is None:
        yield
        return
    _CONNECTED.append(neighbours)
    try:
        yield
    except BaseException:
        _OF_FAILED.append(neighbours)
        raise
    else:
        neighbours.close()
    finally:
        _CONNECTED.pop()


def highest_of_ranks(number: int) -> int:
    """Return the largest of the ranks' numbers, the same on all ranks; each waits until all have called."""
    if not dist.is_initialized():
        return number
    if _CONNECTED:
        return max(int(each) for each in _CONNECTED[-1].gather(torch.tensor(number)))
    highest = torch.tensor(number, device=_device())
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest)


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors, with the same bits on all ranks. Shape: that of ``values``."""
    if not dist.is_initialized():
        return values.clone()
    if _CONNECTED:
        return _sum_by_rank(_CONNECTED[-1].gather(values.cpu())).to(values.device, copy=True)
    total = values.to(_device(), copy=True)
    dist.all_reduce(total)
    return total.to(values.device)


def average_over_ranks_(values: torch.Tensor) -> None:
    """Replace a floating-point tensor by the mean of the ranks' tensors, with the same bits on all ranks."""
    if not dist.is_initialized():
        return
    if _CONNECTED:
        values.copy_(_sum_by_rank(_CONNECTED[-1].gather(values)))
    else:
        dist.all_reduce(values)
    values /= dist.get_world_size()


def gather_from_ranks(values: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's tensor, by rank, on the CPU. Shapes and types have to be the same on all ranks."""
    if not dist.is_initialized():
        return [values.cpu()]
    if _CONNECTED:
        return [each.clone() for each in _CONNECTED[-1].gather(values.cpu())]
    own = values.to(_device()).contiguous()
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [each.cpu() for each in gathered]


def gather_bytes_to_rank_zero(content: bytes) -> list[bytes]:
    """Return every rank's bytes, by rank, on rank 0, and an empty list on the others."""
    if not dist.is_initialized():
        return [content]
    sizes = [int(size) for size in gather_from_ranks(torch.tensor(len(content)))]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    own = padded.to(_device())
    is_zero = dist.get_rank() == 0
    gathered = [torch.empty_like(own) for _ in sizes] if is_zero else None
    dist.gather(own, gathered, dst=0)
    if gathered is None:
        return []
    return [each.cpu()[:size].numpy().tobytes() for each, size in zip(gathered, sizes, strict=True)]


def _sum_by_rank(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum, in the order of the ranks, which all ranks keep to. Overwrites the first tensor."""
    total = tensors[0]
    for each in tensors[1:]:
        total += each
    return total


def _device() -> torch.device:
    """Return the device for tensors of a collective; NCCL works with tensors on GPUs only."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
