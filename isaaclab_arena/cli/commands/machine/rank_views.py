"""Gathers what each rank sees of its machine into one table."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices.egl_devices import describe_variables
from isaaclab_arena.distributed.process_group import choose_backend, gpu_name
from isaaclab_arena.distributed.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class RankView:
    """What one rank sees.

    Attributes:
        rank: Its number among all.
        local_rank: Its number on its machine.
        host: Name of its machine.
        device: The device it would simulate on.
        reason: Why that one.
        gpu: Name of that device, where it is a GPU.
        gpu_key: What tells GPUs apart, for the choice of a backend.
        variables: Environment variables that decide about devices and threads.
        cores: Processors that it may use.
    """

    rank: int
    local_rank: int
    host: str
    device: str
    reason: str
    gpu: str
    gpu_key: str
    variables: dict[str, str]
    cores: int

    @classmethod
    def of_this_process(cls, context: DistributedContext) -> "RankView":
        """Look at this process."""
        is_gpu = context.device.type == "cuda"
        return cls(
            rank=context.rank,
            local_rank=context.local_rank,
            host=socket.gethostname(),
            device=str(context.device),
            reason=context.device_reason,
            gpu=torch.cuda.get_device_name(context.device) if is_gpu else "none",
            gpu_key=gpu_name(context.device),
            variables=describe_variables(),
            cores=usable_cores(),
        )


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gather_views(ranks: Ranks) -> list[RankView]:
    """Return what every rank sees, by rank; all ranks call it."""
    own = json.dumps(asdict(RankView.of_this_process(ranks.context)))
    return [RankView(**json.loads(text)) for text in ranks.gather("view of the machine", own)]


def show_views(views: Sequence[RankView], console: Console) -> None:
    """Show one line per rank, and which backend they would use."""
    table = Table(box=None, pad_edge=False)
    for heading in ("rank", "local rank", "host", "device", "because", "gpu", *views[0].variables, "cores"):
        table.add_column(heading, overflow="fold")
    for view in views:
        table.add_row(
            str(view.rank),
            str(view.local_rank),
            view.host,
            view.device,
            view.reason,
            view.gpu,
            *view.variables.values(),
            str(view.cores),
        )
    console.print(table)
    backend, reason = choose_backend([view.gpu_key for view in views])
    console.print(f"{len(views)} ranks talk over {backend}: {reason}")
