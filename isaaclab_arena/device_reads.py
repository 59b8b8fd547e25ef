"""Copy several tensors between a device and the CPU at once.

Each copy from a device lets the CPU wait until it has caught up, and each one to it takes a call of its own.
"""

from collections.abc import Sequence
from math import prod

import torch


def on_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors on the CPU, in order and bit for bit, with one transfer for all that are on a device."""
    # The largest types first, so that each tensor begins at an aligned address. All tensors on a device must be on the
    # same one.
    away = sorted((tensor for tensor in tensors if not tensor.is_cpu), key=lambda tensor: -tensor.element_size())
    if not away:
        return list(tensors)
    packed = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in away])
    # A GPU writes into pinned memory without a copy in between.
    staged = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=packed.device.type == "cuda")
    staged.copy_(packed)
    sizes = [tensor.element_size() * prod(tensor.shape) for tensor in away]
    copies = {
        id(tensor): part.view(tensor.dtype).reshape(tensor.shape)
        for tensor, part in zip(away, staged.split(sizes), strict=True)
    }
    return [copies.get(id(tensor), tensor) for tensor in tensors]


def on_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy CPU tensors to a device, in order and bit for bit, without waiting; a CPU device returns them unchanged."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    # One transfer for all tensors; the largest types first, so that each begins at an aligned address.
    order = sorted(range(len(tensors)), key=lambda number: -tensors[number].element_size())
    sizes = [tensors[number].element_size() * tensors[number].numel() for number in order]
    staged = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    torch.cat([tensors[number].reshape(-1).view(torch.uint8) for number in order], out=staged)
    there = dict(zip(order, staged.to(device, non_blocking=True).split(sizes), strict=True))
    return [there[number].view(tensor.dtype).reshape(tensor.shape) for number, tensor in enumerate(tensors)]
