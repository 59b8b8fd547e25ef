"""Draws the noise of each entry of a batch from a seed of its own, so that it does not depend on the batch."""

from __future__ import annotations

import typing

import torch
from torch.overrides import TorchFunctionMode

_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_SIZED = {torch.randn: torch.randn, torch.rand: torch.rand}
_REFUSED = frozenset(
    {
        torch.randint,
        torch.randint_like,
        torch.randperm,
        torch.multinomial,
        torch.bernoulli,
        torch.poisson,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.Tensor.bernoulli_,
        torch.Tensor.exponential_,
        torch.Tensor.random_,
    }
)
_DRAWING = _REFUSED.union(_LIKE, _SIZED, [torch.normal])


class NoiseOfEntries(TorchFunctionMode):
    """While it is entered, torch draws noise whose first dimension is the batch from one generator for each entry.

    It draws on the CPU, whatever the device, so that a seed gives the same noise everywhere.

    Args:
        seeds: One number per entry.
    """

    def __init__(self, seeds: typing.Sequence[int]) -> None:
        super().__init__()
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __torch_function__(
        self, function: typing.Any, types: typing.Any, args: tuple = (), kwargs: dict | None = None
    ) -> typing.Any:
        """Draw noise anew, and do everything else as it is.

        Raises:
            RuntimeError: If something is drawn that cannot be told by entries.
        """
        given = kwargs or {}
        if function not in _DRAWING:
            return function(*args, **given)
        if function in _LIKE:
            like = args[0]
            wanted = given.get("dtype") or like.dtype, given.get("device") or like.device
            return self._drawn(_LIKE[function], like.shape, *wanted)
        if function in _SIZED:
            size = given.get("size", args[0] if len(args) == 1 else args)
            return self._drawn(_SIZED[function], _shape(size), given.get("dtype"), given.get("device"))
        if function is torch.normal:
            return self._normal(args, given)
        raise RuntimeError(f"the policy draws with {function.__name__}, which is not known to be drawn by entries")

    def _normal(self, args: tuple, given: dict) -> torch.Tensor:
        mean, std = given.get("mean", args[0] if args else 0.0), given.get("std", args[1] if len(args) > 1 else 1.0)
        size = given.get("size", args[2] if len(args) > 2 else None)
        if size is None:
            size = (mean if isinstance(mean, torch.Tensor) else std).shape
        return self._drawn(torch.randn, _shape(size), given.get("dtype"), given.get("device")) * std + mean

    def _drawn(self, draw: typing.Any, shape: typing.Any, dtype: typing.Any, device: typing.Any) -> torch.Tensor:
        if len(shape) == 0 or shape[0] != len(self._generators):
            raise RuntimeError(f"the policy draws noise of shape {tuple(shape)} for {len(self._generators)} entries")
        # The functions are called themselves here: the mode is not entered while it handles one.
        drawn = torch.stack([draw(tuple(shape[1:]), generator=each, dtype=dtype) for each in self._generators])
        return drawn if device is None else drawn.to(device)


def _shape(size: typing.Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)
