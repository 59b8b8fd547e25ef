"""The training tasks that ship, one file each, and those of other packages."""

from pathlib import Path

from isaaclab_arena.registry import Registry

_DIRECTORY = Path(__file__).parent

CARTPOLE = _DIRECTORY / "cartpole.yaml"
REACH = _DIRECTORY / "reach.yaml"
PUSH_CUBE = _DIRECTORY / "push_cube.yaml"
VELOCITY_GO1 = _DIRECTORY / "velocity_go1.yaml"
WALK_HUMANOID = _DIRECTORY / "walk_humanoid.yaml"
TRACK_MOTION = _DIRECTORY / "track_motion.yaml"

TASKS = Registry(
    "training task",
    {
        name: f"isaaclab_arena.training.tasks:{name.upper()}"
        for name in ("cartpole", "reach", "push_cube", "velocity_go1", "walk_humanoid", "track_motion")
    },
    entry_point_group="isaaclab_arena.training_tasks",
)
"""Name to the task's file or, in other packages, to a mapping with the content of such a file."""
