"""Ranks that are threads of one process, with a store that all of them see."""

from torch._C._distributed_c10d import HashStore

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import Ranks


def ranks_in_threads(world_size: int, timeout_s: float = 5.0) -> list[Ranks]:
    store = HashStore()
    contexts = [DistributedContext(rank=rank, world_size=world_size) for rank in range(world_size)]
    return [Ranks(context, backend="gloo", store=store, timeout_s=timeout_s) for context in contexts]
