"""Read the description of a user's robot, a YAML file that names the parts of an MJCF file."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import error_message, key_path
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import expanded

Point = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Positive = Annotated[float, Field(gt=0)]

_Model = TypeVar("_Model", bound=BaseModel)
_NO_TURN = (1.0, 0.0, 0.0, 0.0)


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BaseDescription(_Described):
    """The place of the robot."""

    body: str  # its outermost body
    position: Point = (0.0, 0.0, 0.0)  # of the origin of that body's file in the scene; the table top is z = 0 [m]
    quaternion: Quaternion = _NO_TURN  # w x y z


class ArmDescription(_Described):
    """The arm."""

    joints: Annotated[tuple[str, ...], Field(min_length=1)]  # base to wrist; the limits are those of the MJCF file
    # position actuators in the order of joints; by default named like the joints
    actuators: tuple[str, ...] | None = None
    home: tuple[float, ...]  # joint positions at the start of an episode [rad]
    velocity_limit: Positive = 2.0  # of every joint [rad/s]


class GripperDescription(_Described):
    """A gripper with two fingers."""

    joints: Annotated[tuple[str, ...], Field(min_length=1)]  # moving joints of the fingers
    open: tuple[float, ...]  # their positions when open
    bodies: tuple[str, str]  # the left finger, on the tool's +y side, and the right one
    palm: str  # the body that carries both
    actuator: str
    closed_control: float  # when the fingers meet
    open_control: float  # when open
    width: Positive  # between the open fingertips [m]
    right_finger_fixed: bool = False  # True: only the left finger moves


class MountDescription(_Described):
    """A frame fixed to a body of the robot."""

    body: str
    position: Point = (0.0, 0.0, 0.0)  # in the body's frame [m]
    quaternion: Quaternion = _NO_TURN  # w x y z


class CameraDescription(MountDescription):
    """A camera on the robot; it looks along its own -z, and its +y is up."""

    name: str  # policies see <name>_rgb
    fovy_deg: Annotated[float, Field(gt=0, lt=180)] = 60.0  # vertical


class WorkspaceDescription(_Described):
    """The box in which tasks put objects; see `isaaclab_arena.environments.robots.embodiment.Workspace`."""

    low: Point  # lowest corner: x, y, z [m]
    high: Point  # highest corner: x, y, z [m]
    reach: Positive | None = None  # largest distance from its base [m]; None: the farthest corner
    tallest: Positive | None = None  # largest height of an object to grasp from above or push [m]; None: no limit


class RobotDescription(_Described):
    """The content of a description file; docs/how_to/robots.md explains it with an example."""

    name: Annotated[str, Field(min_length=1)]
    mjcf: Annotated[str, Field(min_length=1)]  # path, relative to the description
    base: BaseDescription
    arm: ArmDescription
    gripper: GripperDescription | None = None
    # Tool centre point between the open fingertips. Its z axis points out of the hand, and the fingers close along its
    # y axis.
    tool: MountDescription
    cameras: tuple[CameraDescription, ...] = ()  # in addition to those of the MJCF file
    workspace: WorkspaceDescription
    hand_down: Quaternion = (0.0, 1.0, 0.0, 0.0)  # tool orientation that points down, w x y z
    rotation_weight: Positive | None = None  # 1 rad against 1 m in inverse kinematics; small for under six joints
    ik_damping: Positive = 0.03  # of inverse kinematics
    gravity_compensation: bool = False  # True: the controller carries the robot's weight


def read_description(path: Path) -> RobotDescription:
    """Return the content of a description file; ConfigError with every problem and its key."""
    return _validated(RobotDescription, expanded(read_document(path)), str(path))


def _validated(model: type[_Model], values: Any, file: str) -> _Model:
    try:
        # Pydantic's JSON mode checks types strictly but accepts lists for tuples.
        return model.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as invalid:
        raise ConfigError(
            [
                Problem(error_message(error, sorted(model.model_fields)), file=file, key=key_path(error) or None)
                for error in invalid.errors(include_url=False)
            ]
        ) from invalid
