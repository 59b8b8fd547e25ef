"""Train policies on all ranks, and evaluate them on the same ranks."""

from pathlib import Path
from typing import TYPE_CHECKING

from isaaclab_arena.registry import Registry, attach, constants

if TYPE_CHECKING:
    from isaaclab_arena.distributed.context import is_a_rank
    from isaaclab_arena.distributed.devices import selectable_gpu_count

__all__ = [
    "TASKS",
    "is_a_rank",
    "selectable_gpu_count",
]

__getattr__, __dir__ = attach(
    __name__, {"distributed.context": "is_a_rank", "distributed.devices": "selectable_gpu_count"}
)

_TASK_FILES = Path(__file__).parent / "tasks"

CARTPOLE = _TASK_FILES / "cartpole.yaml"
REACH = _TASK_FILES / "reach.yaml"
PUSH_CUBE = _TASK_FILES / "push_cube.yaml"
VELOCITY_GO1 = _TASK_FILES / "velocity_go1.yaml"
WALK_HUMANOID = _TASK_FILES / "walk_humanoid.yaml"
TRACK_MOTION = _TASK_FILES / "track_motion.yaml"

TASKS = Registry(
    "training task",
    constants(__name__, "cartpole", "reach", "push_cube", "velocity_go1", "walk_humanoid", "track_motion"),
    entry_point_group="isaaclab_arena.training_tasks",
)
"""Name to the task's file or, in other packages, to a mapping with the content of such a file."""
