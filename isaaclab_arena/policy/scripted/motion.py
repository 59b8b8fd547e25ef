"""Turn a goal pose into an action by one damped-least-squares step, in either action mode.

Legend: n env slots, k arm joints. Elementwise arithmetic only; see `isaaclab_arena.sim.math.rotation`.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache

import torch

from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.math.kinematics import apply_jacobian, damped_least_squares, step_within_limits
from isaaclab_arena.sim.math.rotation import clip_length, dot, multiply, norm, rotate, rotation_error
from isaaclab_arena.sim.scene.robot import Robot

HAND_DOWN = (0.0, 1.0, 0.0, 0.0)
_DEGREES = math.pi / 180
HAND_FORWARD = tuple(
    half * 0.5**0.5
    for half in (math.sin(20 * _DEGREES), math.cos(20 * _DEGREES), math.cos(20 * _DEGREES), math.sin(20 * _DEGREES))
)

# The palm of a hand that points down would touch a tall object before the fingertips do.
_PUSH_TILT_SINE, _PUSH_TILT_COSINE = math.sin(15 * _DEGREES), math.cos(15 * _DEGREES)

_TURN_RAD = 0.25
_POSTURE_GAIN = 0.05
_HALF_SQRT = 0.5**0.5


class ArmMotion:
    """Steps of a robot's arm towards goal poses.

    Args:
        robot: The robot.
        backend: The simulation it stands in.
    """

    def __init__(self, robot: Robot, backend: Backend) -> None:
        self.robot = robot
        self.backend = backend
        self.positions, self.dofs = backend.joint_indices(robot.arm_joints)
        self.arm_controls = backend.actuator_indices(robot.arm_actuators)
        dtype = backend.qpos.dtype
        self.home = torch.tensor(robot.home, dtype=dtype, device=backend.device)
        self.low = torch.tensor(robot.joint_low, dtype=dtype, device=backend.device)
        self.high = torch.tensor(robot.joint_high, dtype=dtype, device=backend.device)

    def errors(self, position: torch.Tensor, orientation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors to a goal: translation [m] and rotation vector [rad], both of shape (n, 3).

        Args:
            position: Goal of the middle between the fingertips. Shape: (n, 3).
            orientation: Goal of the hand. Shape: (n, 4).
        """
        translation = position - self.tool_position()
        return translation, rotation_error(orientation, self.backend.body_orientation(self.robot.hand_body))

    def joint_targets(self, translation: torch.Tensor, rotation: torch.Tensor, step_m: torch.Tensor) -> torch.Tensor:
        """Return joint targets one control step towards a goal [rad]. Shape: (n, k).

        Args:
            translation: Translation to the goal [m]. Shape: (n, 3).
            rotation: Rotation to the goal [rad]. Shape: (n, 3).
            step_m: Longest step towards the goal [m]. Shape: (n,).
        """
        joints = self.backend.qpos[:, self.positions]
        jacobian = self._jacobian()
        shorter = (step_m / norm(translation).clamp(min=1e-9)).clamp(max=1.0)
        twist = torch.cat((translation * shorter[:, None], clip_length(rotation, _TURN_RAD)), dim=-1)
        posture = _POSTURE_GAIN * (self.home - joints)
        if self.robot.rotation_weight == 1.0:
            twist = twist - apply_jacobian(jacobian, posture)
            step = posture + damped_least_squares(jacobian, twist, self.robot.ik_damping)
            return torch.minimum(torch.maximum(joints + step, self.low), self.high)
        return joints + step_within_limits(
            jacobian,
            twist,
            self.robot.ik_damping,
            rotation_weight=self.robot.rotation_weight,
            low=(self.low - joints).clamp(max=0.0),
            high=(self.high - joints).clamp(min=0.0),
        )

    def tool_position(self) -> torch.Tensor:
        """Return the middle between the fingertips; it moves if only one finger moves [m]. Shape: (n, 3)."""
        site = self.backend.site_position(self.robot.tcp_site)
        if not self.robot.right_finger_fixed:
            return site
        controls = self.backend.joint_position(self.robot.finger_joints[0])[:, 0]
        width = (controls - self.robot.gripper_closed) / self.robot.control_per_metre
        closed_by = (self.robot.gripper_width - width) / 2
        zero = torch.zeros_like(closed_by)
        shift = torch.stack((zero, -closed_by, zero), dim=-1)
        return site + rotate(self.backend.body_orientation(self.robot.hand_body), shift)

    def as_twist(self, joint_targets: torch.Tensor) -> torch.Tensor:
        """Return the end-effector step from the current joint targets to new ones. Shape: (n, 6)."""
        held = self.backend.ctrl[:, self.arm_controls]
        return apply_jacobian(self._jacobian(), joint_targets - held)

    def _jacobian(self) -> torch.Tensor:
        return self.backend.jacobian(self.robot.hand_body, self.robot.tcp_site)[:, :, self.dofs]


class Symmetry(Enum):
    """The ways in which an upright object may be grasped from above; fingers along its y axis always work."""

    EVERY_YAW = "every yaw"
    QUARTER_TURNS = "quarter turns"
    HALF_TURNS = "half turns"

    @classmethod
    def of(cls, sizes: Mapping[str, float]) -> "Symmetry":
        """Return the symmetry of the object that a task's sizes describe."""
        if sizes.get("object_round", 1.0):
            return cls.EVERY_YAW
        return cls.HALF_TURNS if sizes.get("object_oblong", 0.0) else cls.QUARTER_TURNS


_QUARTER = ((_HALF_SQRT, _HALF_SQRT), (0.0, 1.0), (_HALF_SQRT, -_HALF_SQRT))
_OTHER_TURNS = {Symmetry.QUARTER_TURNS: _QUARTER, Symmetry.HALF_TURNS: ((0.0, 1.0),)}


def hand_down(object_orientation: torch.Tensor, symmetry: Symmetry, rest: Sequence[float] = HAND_DOWN) -> torch.Tensor:
    """Return the hand's orientation, pointing down, with the fingers along sides of an upright thing.

    Of the orientations that the symmetry allows, the one nearest to the hand's current one is chosen.

    Args:
        object_orientation: Shape: (n, 4).
        symmetry: How the object may be grasped.
        rest: How the hand is held when it may choose its yaw, pointing down.

    Returns:
        Shape: (n, 4).
    """
    down = constant(rest, object_orientation)
    if symmetry is Symmetry.EVERY_YAW:
        return down.expand_as(object_orientation)
    w, z = object_orientation[:, 0], object_orientation[:, 3]
    length = torch.sqrt(w * w + z * z).clamp(min=1e-9)
    w, z = w / length, z / length
    for cosine, sine in _OTHER_TURNS[symmetry]:
        other_w, other_z = w * cosine - z * sine, w * sine + z * cosine
        better = other_w.abs() > w.abs()
        w, z = torch.where(better, other_w, w), torch.where(better, other_z, z)
    return _turned_down(w, z)


def hand_across(way: torch.Tensor, rest: Sequence[float], *, tilted: bool) -> torch.Tensor:
    """Return the hand's orientation for a push: pointing down, with its flat side across the direction of the push.

    Args:
        way: Unit vectors with z = 0. Shape: (n, 3).
        rest: How the hand is held when it may choose its yaw, pointing down: a half turn about a horizontal axis.
        tilted: Whether it leans 30 degrees forward.

    Returns:
        Shape: (n, 4).
    """
    _, axis_x, axis_y, _ = rest
    along = constant((axis_x * axis_x - axis_y * axis_y, 2 * axis_x * axis_y, 0.0), way)
    aside = torch.stack((-along[1], along[0], along[2]))
    # The hand is symmetric, so half a turn is never needed.
    backward = dot(way, along) < 0
    forward = torch.where(backward[:, None], -way, way)
    w = torch.sqrt((1 + dot(forward, along)) / 2)
    zero = torch.zeros_like(w)
    held = constant(rest, w).expand(w.shape[0], 4)
    if tilted:
        sine = torch.where(backward, _PUSH_TILT_SINE, -_PUSH_TILT_SINE).to(w.dtype)
        tilt = torch.stack((zero + _PUSH_TILT_COSINE, sine * aside[0], sine * aside[1], zero), dim=-1)
        held = multiply(tilt, held)
    return multiply(torch.stack((w, zero, zero, dot(forward, aside) / (2 * w)), dim=-1), held)


def constant(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return numbers as a tensor of another's type and device, the same one each time; nobody may write to it.

    To put numbers on a GPU is to wait for the GPU, so it is done once.
    """
    return _constant(tuple(values), like.dtype, like.device)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # Made in inference mode it could not be used outside.
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=dtype, device=device)


def horizontal_way(start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return direction and length [m] between points, seen from above. Shapes: (n, 3) -> (n, 3), (n,)."""
    way = end - start
    way = torch.stack((way[:, 0], way[:, 1], torch.zeros_like(way[:, 0])), dim=-1)
    length = norm(way)
    return way / length.clamp(min=1e-9)[:, None], length


def _turned_down(w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    down = constant(HAND_DOWN, w)
    zero = torch.zeros_like(w)
    return multiply(torch.stack((w, zero, zero, z), dim=-1), down.expand(w.shape[0], 4))
