"""An embodiment: a robot, its MJCF file, and its workspace."""

import math
from dataclasses import dataclass
from typing import TypeAlias

from isaaclab_arena.sim.scene.scene import CameraPose, PartFrame, Robot, ScenePart

# Define a robot's workspace on the table, and scale tasks from one workspace to another.

TABLE = "scenes/table.xml"
"""The scene that every robot on the table stands in, relative to the package's assets."""

Area: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Lowest and highest corner of a box."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The part of the table, and of the space above it, in which a robot can do its work."""

    # Lowest corner: x, y, z [m]. Tasks are laid out for the reference workspace, the Panda's. They are scaled so that
    # its corners map to this box's corners.
    low: tuple[float, float, float]
    high: tuple[float, float, float]  # highest corner: x, y, z [m]
    reach_m: float  # largest horizontal distance from the base at which it can touch things
    tallest_m: float = math.inf  # of an object to grasp from above or push

    def on_table(self, low: tuple[float, ...], high: tuple[float, ...]) -> Area:
        """Scale an area of the reference table to this workspace: x and y [m]; further values stay unchanged."""
        return self._fitted(low, 2), self._fitted(high, 2)

    def in_space(self, low: tuple[float, float, float], high: tuple[float, float, float]) -> Area:
        """Scale a box of the reference workspace to this one; x, y and z [m]."""
        return self._fitted(low, 3), self._fitted(high, 3)

    def _fitted(self, corner: tuple[float, ...], num_axes: int) -> tuple[float, ...]:
        reference = REFERENCE_WORKSPACE
        if (self.low, self.high) == (reference.low, reference.high):
            return corner
        fitted = [
            self.low[axis]
            + (corner[axis] - reference.low[axis])
            * (self.high[axis] - self.low[axis])
            / (reference.high[axis] - reference.low[axis])
            for axis in range(num_axes)
        ]
        return (*fitted, *corner[num_axes:])


REFERENCE_WORKSPACE = Workspace(low=(0.40, -0.25, 0.10), high=(0.60, 0.25, 0.45), reach_m=0.855)


# Define an embodiment: a robot, its MJCF file, and its workspace.


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """A robot that environments can be built with.

    Attributes:
        robot: The names of its parts, in a scene where its prefix is ``robot``, and its limits.
        asset: Path of its MJCF file, relative to the package's assets or absolute.
        workspace: The box in which it can work.
        position: Place of its base [m].
        quaternion: Orientation of its base.
        frames: Frames fixed to its bodies that its file lacks: a tool frame, cameras.
        gravity_compensation: Whether its controller carries its own weight, if the file does not say so.
        scene_cameras: Cameras of the scene that have another pose for this robot.
    """

    robot: Robot
    asset: str
    workspace: Workspace
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    frames: tuple[PartFrame, ...] = ()
    gravity_compensation: bool = False
    scene_cameras: tuple[CameraPose, ...] = ()

    @property
    def words(self) -> str:
        """Its description in a list of robots."""
        robot = self.robot
        gripper = f"gripper {100 * robot.gripper_width:.0f} cm wide" if robot.gripper_width else "no gripper"
        return f"{len(robot.arm_joints)} joints, {gripper}, reaches {self.workspace.reach_m:.2f} m"

    def part(self) -> ScenePart:
        """Return the robot as a part of a scene."""
        return ScenePart(
            prefix="robot",
            asset=self.asset,
            position=self.position,
            quaternion=self.quaternion,
            frames=self.frames,
            gravity_compensation=self.gravity_compensation,
        )
