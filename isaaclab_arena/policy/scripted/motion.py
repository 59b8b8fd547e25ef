"""From a goal pose to an action: one damped-least-squares step, in either action mode.

Legend: n rows, k arm joints. Elementwise arithmetic only; see `isaaclab_arena.sim.rotation`.
"""

import math

import torch

from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.kinematics import apply_jacobian, damped_least_squares
from isaaclab_arena.sim.robot import Robot
from isaaclab_arena.sim.rotation import clip_length, multiply, norm, rotation_error

HAND_DOWN = (0.0, 1.0, 0.0, 0.0)
_DEGREES = math.pi / 180
HAND_FORWARD = tuple(
    half * 0.5**0.5
    for half in (math.sin(20 * _DEGREES), math.cos(20 * _DEGREES), math.cos(20 * _DEGREES), math.sin(20 * _DEGREES))
)

_DAMPING = 0.03
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
        self.arm_controls = torch.tensor([backend.names.actuators[joint] for joint in robot.arm_joints])
        dtype = backend.qpos.dtype
        self.home = torch.tensor(robot.home, dtype=dtype, device=backend.device)
        self.low = torch.tensor(robot.joint_low, dtype=dtype, device=backend.device)
        self.high = torch.tensor(robot.joint_high, dtype=dtype, device=backend.device)

    def errors(self, position: torch.Tensor, orientation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is missing to a goal: translation [m] and rotation vector [rad], both (n, 3).

        Args:
            position: Goal of the tool centre point. Shape: (n, 3).
            orientation: Goal of the hand. Shape: (n, 4).
        """
        translation = position - self.backend.site_position(self.robot.tcp_site)
        return translation, rotation_error(orientation, self.backend.body_orientation(self.robot.hand_body))

    def joint_targets(self, translation: torch.Tensor, rotation: torch.Tensor, step_m: torch.Tensor) -> torch.Tensor:
        """Return joint targets one control step towards a goal [rad]. Shape: (n, k).

        Args:
            translation: What is missing [m]. Shape: (n, 3).
            rotation: What is missing [rad]. Shape: (n, 3).
            step_m: Longest way to aim ahead [m]. Shape: (n,).
        """
        joints = self.backend.qpos[:, self.positions]
        jacobian = self._jacobian()
        shorter = (step_m / norm(translation).clamp(min=1e-9)).clamp(max=1.0)
        twist = torch.cat((translation * shorter[:, None], clip_length(rotation, _TURN_RAD)), dim=-1)
        posture = _POSTURE_GAIN * (self.home - joints)
        step = posture + damped_least_squares(jacobian, twist - apply_jacobian(jacobian, posture), _DAMPING)
        return torch.minimum(torch.maximum(joints + step, self.low), self.high)

    def as_twist(self, joint_targets: torch.Tensor) -> torch.Tensor:
        """Return the end-effector step that leads from where the arm is told to be to joint targets. Shape: (n, 6)."""
        held = self.backend.ctrl[:, self.arm_controls]
        return apply_jacobian(self._jacobian(), joint_targets - held)

    def _jacobian(self) -> torch.Tensor:
        return self.backend.jacobian(self.robot.hand_body, self.robot.tcp_site)[:, :, self.dofs]


def hand_down(object_orientation: torch.Tensor, *, turn: bool) -> torch.Tensor:
    """Return the hand's orientation, pointing down, with the fingers along sides of an upright box.

    Of the four ways to take a box the one nearest to the hand's own is chosen.

    Args:
        object_orientation: Shape: (n, 4).
        turn: Whether the hand follows the object's yaw at all.

    Returns:
        Shape: (n, 4).
    """
    down = torch.tensor(HAND_DOWN, dtype=object_orientation.dtype, device=object_orientation.device)
    if not turn:
        return down.expand_as(object_orientation)
    w, z = object_orientation[:, 0], object_orientation[:, 3]
    length = torch.sqrt(w * w + z * z).clamp(min=1e-9)
    w, z = w / length, z / length
    for cosine, sine in ((_HALF_SQRT, _HALF_SQRT), (0.0, 1.0), (_HALF_SQRT, -_HALF_SQRT)):
        other_w, other_z = w * cosine - z * sine, w * sine + z * cosine
        better = other_w.abs() > w.abs()
        w, z = torch.where(better, other_w, w), torch.where(better, other_z, z)
    zero = torch.zeros_like(w)
    return multiply(torch.stack((w, zero, zero, z), dim=-1), down.expand_as(object_orientation))
