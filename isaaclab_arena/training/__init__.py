"""Train policies on all ranks, and evaluate them on the same ranks."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.distributed.context import is_a_rank
    from isaaclab_arena.distributed.devices import selectable_gpu_count
    from isaaclab_arena.training.tasks import TASKS

__all__ = [
    "TASKS",
    "is_a_rank",
    "selectable_gpu_count",
]

_HOMES = {
    "TASKS": "isaaclab_arena.training.tasks",
    "is_a_rank": "isaaclab_arena.distributed.context",
    "selectable_gpu_count": "isaaclab_arena.distributed.devices",
}
"""Public name to the module that defines it, which is imported when the name is first used."""

__getattr__, __dir__ = attach(__name__, _HOMES)
