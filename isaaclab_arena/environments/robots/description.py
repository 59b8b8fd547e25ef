"""Read the description of a user's robot, a YAML file that names the parts of an MJCF file."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import error_message, key_path
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import expanded

Point = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Positive = Annotated[float, Field(gt=0)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MountDescription(_Described):
    """A frame fixed to a body of the robot.

    Attributes:
        body: The body.
        position: Where the frame is in that body [m].
        quaternion: How it is turned, w x y z.
    """

    body: str
    position: Point = (0.0, 0.0, 0.0)
    quaternion: Quaternion = (1.0, 0.0, 0.0, 0.0)


class BaseDescription(MountDescription):
    """Where the robot stands: its outermost body, and its file's origin in the scene, where the table top is z = 0."""


class ArmDescription(_Described):
    """The arm.

    Attributes:
        joints: Its joints, base to wrist; their limits are those of the MJCF file.
        actuators: The position actuators of these joints, in the same order; by default they have the joints' names.
        home: Joint positions at the start of an episode [rad].
        velocity_limit: Highest speed of every joint [rad/s].
    """

    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    actuators: tuple[str, ...] | None = None
    home: tuple[float, ...]
    velocity_limit: Positive = 2.0


class GripperDescription(_Described):
    """A gripper of two fingers.

    Attributes:
        joints: Joints of the fingers that move.
        open: Their positions when it is open, in the same order.
        bodies: The left finger, on the side of the tool's +y, and the right one.
        palm: The body that carries both.
        actuator: The actuator that moves them.
        closed_control: The actuator's control when the fingers meet.
        open_control: Its control when the gripper is open.
        width: Distance between the fingertips when it is open [m].
        right_finger_fixed: Whether only the left finger moves.
    """

    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    open: tuple[float, ...]
    bodies: tuple[str, str]
    palm: str
    actuator: str
    closed_control: float
    open_control: float
    width: Positive
    right_finger_fixed: bool = False


class CameraDescription(MountDescription):
    """A camera on the robot; it looks along its own -z, and its +y is up.

    Attributes:
        name: Its name; policies see ``<name>_rgb``.
        fovy_deg: Vertical field of view.
    """

    name: str
    fovy_deg: Annotated[float, Field(gt=0, lt=180)] = 60.0


class WorkspaceDescription(_Described):
    """The box in which tasks put objects; see `isaaclab_arena.environments.robots.embodiment.Workspace`.

    Attributes:
        low: Lowest corner: x, y, z [m].
        high: Highest corner: x, y, z [m].
        reach: Largest distance from its base at which the robot can touch things [m]; by default to the farthest
            corner.
        tallest: Height of the tallest object that it can grasp from above or push [m]; no limit by default.
    """

    low: Point
    high: Point
    reach: Positive | None = None
    tallest: Positive | None = None


class RobotDescription(_Described):
    """What a description file holds; docs/how_to/robots.md explains it with an example.

    Attributes:
        name: The robot's name.
        mjcf: Path of the MJCF file, relative to the description.
        base: Where it stands.
        arm: Its arm.
        gripper: Its gripper, if it has one.
        tool: The tool centre point, between the tips of the open fingers; its z axis points out of the hand and the
            fingers close along its y axis.
        cameras: Cameras that the MJCF file does not hold.
        workspace: Where it works.
        hand_down: Orientation of the tool when it points down, w x y z.
        rotation_weight: Weight of 1 rad against 1 m in inverse kinematics; small for fewer than six joints.
        ik_damping: Damping of the inverse kinematics.
        gravity_compensation: Whether its controller carries its own weight.
    """

    name: Annotated[str, Field(min_length=1)]
    mjcf: Annotated[str, Field(min_length=1)]
    base: BaseDescription
    arm: ArmDescription
    gripper: GripperDescription | None = None
    tool: MountDescription
    cameras: tuple[CameraDescription, ...] = ()
    workspace: WorkspaceDescription
    hand_down: Quaternion = (0.0, 1.0, 0.0, 0.0)
    rotation_weight: Positive | None = None
    ik_damping: Positive = 0.03
    gravity_compensation: bool = False


def read_description(path: Path) -> RobotDescription:
    """Read a description file.

    Raises:
        ConfigError: With every problem of the file, each with its key.
    """
    values = expanded(read_document(path))
    try:
        # Pydantic's JSON mode checks types strictly but accepts lists for tuples.
        return RobotDescription.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as invalid:
        known = sorted(RobotDescription.model_fields)
        problems = [
            Problem(error_message(error, known), file=str(path), key=key_path(error) or None)
            for error in invalid.errors(include_url=False)
        ]
        raise ConfigError(problems) from invalid
