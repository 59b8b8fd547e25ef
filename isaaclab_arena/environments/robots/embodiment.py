"""Define an embodiment: a robot, its MJCF file, and its workspace."""

from dataclasses import dataclass

from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import CameraPose, PartFrame, ScenePart


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """A robot that environments can be built with.

    Attributes:
        robot: The names of its parts, in a scene where its prefix is ``robot``, and its limits.
        asset: Path of its MJCF file, relative to the package's assets or absolute.
        workspace: Where it works.
        position: Where its base stands [m].
        quaternion: How its base is turned.
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
