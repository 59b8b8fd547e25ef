"""Ranks that are only said to be there, so that what one of them would send can be counted in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from isaaclab_arena.distributed.context import DistributedContext

_COLLECTIVES = "c10d"


class Messages(TorchDispatchMode):
    """Notes the numbers that this rank puts into each collective.

    Attributes:
        sizes: Of each message, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if operation.namespace == _COLLECTIVES:
            # An all_gather takes what is received first, and then what is sent.
            own = args[1] if operation.__name__.startswith("allgather") else args[0]
            self.sizes.append(sum(tensor.numel() for tensor in own))
        return operation(*args, **(kwargs or {}))


@contextmanager
def pretended_ranks(world_size: int) -> Iterator[DistributedContext]:
    """Let this process be rank 0 among ranks that send zeros to be summed, and what it sends itself to be gathered."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield DistributedContext(rank=0, world_size=world_size)
    finally:
        dist.destroy_process_group()
