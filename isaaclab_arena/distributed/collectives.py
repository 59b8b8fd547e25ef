"""The collectives of training; every rank must call them together, and a single process gets its own value."""

import torch
import torch.distributed as dist


def highest_of_ranks(number: int) -> int:
    """Return the largest of the ranks' numbers, the same on all ranks; each waits until all have called."""
    if not dist.is_initialized():
        return number
    highest = torch.tensor(number, device=_device())
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest)


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors, with the same bits on all ranks. Shape: that of ``values``."""
    if not dist.is_initialized():
        return values.clone()
    total = values.to(_device(), copy=True)
    dist.all_reduce(total)
    return total.to(values.device)


def average_over_ranks_(values: torch.Tensor) -> None:
    """Replace a floating-point tensor by the mean of the ranks' tensors, with the same bits on all ranks."""
    if dist.is_initialized():
        dist.all_reduce(values)
        values /= dist.get_world_size()


def gather_from_ranks(values: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's tensor, by rank, on the CPU. Shapes and types have to be the same on all ranks."""
    if not dist.is_initialized():
        return [values.cpu()]
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


def _device() -> torch.device:
    """Return the device for tensors of a collective; NCCL works with tensors on GPUs only."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
