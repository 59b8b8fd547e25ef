"""An embodiment: a robot, its MJCF file, and its workspace; and the built-in arms."""

import math
from dataclasses import dataclass
from typing import TypeAlias

from isaaclab_arena.sim.scene import CameraPose, PartFrame, Robot, ScenePart

TABLE = "scenes/table.xml"  # the scene that every robot on the table stands in, relative to the package's assets
Area: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # lowest and highest corner of a box


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
        return self.in_space(low, high, num_axes=2)

    def in_space(self, low: tuple[float, ...], high: tuple[float, ...], *, num_axes: int = 3) -> Area:
        """Scale a box of the reference workspace to this one: x, y and z [m], or only the first axes."""
        reference = REFERENCE_WORKSPACE
        if (self.low, self.high) == (reference.low, reference.high):
            return low, high
        axes = [*zip(self.low, self.high, reference.low, reference.high, strict=True)][:num_axes]
        fitted = [
            [
                begin + (at - first) * (end - begin) / (last - first)
                for at, (begin, end, first, last) in zip(corner, axes, strict=False)
            ]
            for corner in (low, high)
        ]
        return (*fitted[0], *low[num_axes:]), (*fitted[1], *high[num_axes:])


REFERENCE_WORKSPACE = Workspace(low=(0.40, -0.25, 0.10), high=(0.60, 0.25, 0.45), reach_m=0.855)


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
        kept = ("asset", "position", "quaternion", "frames", "gravity_compensation")
        return ScenePart(prefix="robot", **{name: getattr(self, name) for name in kept})


# The Franka Emika Panda: seven joints, a parallel gripper of 0 to 0.04 m per finger.

_PANDA_JOINTS = tuple(f"robot/panda_joint{number}" for number in range(1, 8))

PANDA = Embodiment(
    asset="robots/panda.xml",
    workspace=REFERENCE_WORKSPACE,
    robot=Robot(
        name="panda",
        arm_joints=_PANDA_JOINTS,
        arm_actuators=_PANDA_JOINTS,
        joint_low=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
        joint_high=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
        joint_velocity_limit=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
        joint_torque_limit=(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
        home=(0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.7854),
        finger_joints=("robot/panda_finger_joint1", "robot/panda_finger_joint2"),
        finger_open=(0.04, 0.04),
        gripper_actuator="robot/gripper",
        gripper_closed=0.0,
        gripper_open=0.04,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/hand",
        finger_bodies=("robot/left_finger", "robot/right_finger"),
        tcp_site="robot/tcp",
        base_body="robot/link0",
    ),
)


# The SO-ARM101 of The Robot Studio, LeRobot's arm: five joints, and a gripper with one moving jaw.
#
# Joint names and ranges, link lengths, masses and the servos' friction and torque are those of
# https://github.com/TheRobotStudio/SO-ARM100, Simulation/SO101/so101_new_calib.xml, in which zero is the middle of each
# joint's range. The servos are Feetech STS3215 of 12 V: 2.94 Nm, and 45 turns per minute without load.

_SO101_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
_JAW_CLOSED_RAD = -0.1745
_JAW_OPEN_RAD = 1.0015
_HALF_SQRT = 0.5**0.5

SO101 = Embodiment(
    asset="robots/so101.xml",
    workspace=Workspace(low=(0.20, -0.16, 0.06), high=(0.27, 0.16, 0.22), reach_m=0.39, tallest_m=0.17),
    scene_cameras=(
        CameraPose(name="robot_head_cam", position=(0.12, -0.50, 0.48), target=(0.18, 0.0, 0.09), fovy_deg=46.0),
        CameraPose(name="viewport", position=(0.50, -0.75, 0.42), target=(0.16, 0.0, 0.10), fovy_deg=34.0),
    ),
    robot=Robot(
        name="so101",
        arm_joints=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        arm_actuators=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        joint_low=(-1.91986, -1.74533, -1.69, -1.65806, -2.74385),
        joint_high=(1.91986, 1.74533, 1.69, 1.65806, 2.84121),
        joint_velocity_limit=(4.7,) * 5,
        joint_torque_limit=(2.94,) * 5,
        home=(0.0, -0.80, 0.55, 1.45, 0.0487),
        finger_joints=("robot/gripper",),
        finger_open=(_JAW_OPEN_RAD,),
        gripper_actuator="robot/gripper",
        gripper_closed=_JAW_CLOSED_RAD,
        gripper_open=_JAW_OPEN_RAD,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/gripper",
        finger_bodies=("robot/moving_jaw", "robot/fixed_jaw"),
        tcp_site="robot/tcp",
        base_body="robot/base",
        finger_unit="rad",
        hand_down=(0.0, _HALF_SQRT, _HALF_SQRT, 0.0),
        rotation_weight=0.05,
        ik_damping=0.02,
        right_finger_fixed=True,
    ),
)
