"""Give scripted policies and pictures the simulation's state, which observations do not show."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.scene.robot import Robot


@runtime_checkable
class Simulated(Protocol):
    """An environment with a simulation and a robot inside.

    Attributes:
        backend: The simulation.
        robot: The robot in it.
    """

    backend: Backend
    robot: Robot

    @property
    def task_name(self) -> str:
        """Registered name of the task, for example ``lift_object``."""
        ...

    @property
    def action_mode_name(self) -> str:
        """What actions mean: ``joint_position`` or ``ee_delta``."""
        ...

    @property
    def landmarks(self) -> Mapping[str, str]:
        """Role (``object``, ``bin``, ``target``, ``handle``) to the name of the body or site that plays it."""
        ...

    @property
    def sizes(self) -> Mapping[str, float]:
        """Lengths of the task's things [m], and ``object_round`` (0 or 1)."""
        ...
