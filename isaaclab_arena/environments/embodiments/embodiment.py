"""What an embodiment is: a robot and the file that it is built from."""

from dataclasses import dataclass

from isaaclab_arena.sim.robot import Robot
from isaaclab_arena.sim.scene import ScenePart


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """A robot that environments can be built with.

    Attributes:
        robot: Its names, as in a scene where its prefix is ``robot``, and its limits.
        asset: Path of its MJCF file, relative to the package's assets or absolute.
    """

    robot: Robot
    asset: str

    def part(self) -> ScenePart:
        """Return the robot as a part of a scene, its base at the origin."""
        return ScenePart(prefix="robot", asset=self.asset)
