"""A stand-in for the graphs of a GPU: what torch was told on the CPU, told again with the same memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tape(work: Callable[[], None]) -> Callable[[], None]:
    """Capture work as a GPU does: results get a place in memory, where each replay writes them anew.

    Unlike there, the work is done meanwhile; what it changes in place is put back afterwards.
    """
    recorded = _Tape()
    try:
        with recorded:
            work()
    finally:
        recorded.undo()
    return recorded.replay


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Sequence[Any], dict[str, Any], Sequence[torch.Tensor]]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            changed = kwargs.get("out", args[0])
            self._before.append((changed, changed.clone()))
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, _tensors(result)))
        return result

    def undo(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, places in self._calls:
            for place, value in zip(places, _tensors(func(*args, **kwargs)), strict=True):
                if place.untyped_storage().data_ptr() != value.untyped_storage().data_ptr():
                    place.copy_(value)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
