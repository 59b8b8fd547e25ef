"""Actions and observations: their names and shapes, and how they are applied to and read from the simulation."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch

from isaaclab_arena.interfaces.specs import HOLDS_LAST, ArraySpec, HoldAction, SideBySide
from isaaclab_arena.sim.backend import Backend, NamedState, side_by_side
from isaaclab_arena.sim.math import damped_least_squares, rotate_inverse, step_within_limits
from isaaclab_arena.sim.scene import FloorRobot, Robot

# Define action modes: the meaning of an action's numbers, and the actuator targets that follow.

ActionModeName: TypeAlias = Literal["joint_position", "ee_delta"]

MAX_TRANSLATION_M = 0.04
MAX_ROTATION_RAD = 0.2

_MAX_LEAD_RAD = 0.2


class ActionMode(ABC):
    """Maps actions to targets of the arm's actuators and the gripper's."""

    name: ClassVar[str]
    spec: ArraySpec
    hold_action: HoldAction = HOLDS_LAST

    def __init__(
        self, robot: Robot, backend: Backend, control_dt: float, bounds: Sequence[tuple[str, float, float]], unit: str
    ) -> None:
        # ``bounds`` are the names of an action's numbers with their lowest and highest values. The width of the gripper
        # follows if the robot has one.
        if robot.gripper_actuator is not None:
            bounds, unit = [*bounds, ("gripper_width", 0.0, robot.gripper_width)], f"{unit}, gripper m"
        names, low, high = zip(*bounds, strict=True)
        self.spec = ArraySpec(shape=(len(names),), low=low, high=high, names=names, unit=unit)
        # Targets stay within the joint limits, and move no faster than the joints can.
        self.robot = robot
        positions, self.dofs = backend.joint_indices(robot.arm_joints)
        self.positions = side_by_side(positions)
        self.arm_controls = side_by_side(backend.actuator_indices(robot.arm_actuators))
        self.gripper_control = backend.names.actuators[robot.gripper_actuator] if robot.gripper_actuator else None
        dtype = backend.qpos.dtype
        self.low = torch.tensor(robot.joint_low, dtype=dtype, device=backend.device)
        self.high = torch.tensor(robot.joint_high, dtype=dtype, device=backend.device)
        self.max_step = torch.tensor(robot.joint_velocity_limit, dtype=dtype, device=backend.device) * control_dt

    def controls(self, backend: Backend, action: torch.Tensor) -> torch.Tensor:
        """Return the actuator targets (num_envs, nu) for actions (num_envs, action_dim)."""
        action = action.to(backend.ctrl.dtype)
        held = backend.ctrl[:, self.arm_controls]
        wanted = self.joint_targets(backend, action, held)
        controls = backend.ctrl.clone()
        moved = held + torch.minimum(torch.maximum(wanted - held, -self.max_step), self.max_step)
        controls[:, self.arm_controls] = torch.minimum(torch.maximum(moved, self.low), self.high)
        if self.gripper_control is not None:
            width = action[:, -1].clamp(0, self.robot.gripper_width)
            controls[:, self.gripper_control] = self.robot.gripper_closed + width * self.robot.control_per_metre
        return controls

    @abstractmethod
    def joint_targets(self, backend: Backend, action: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the joint targets [rad] of actions; ``held`` (num_envs, num_joints) are the targets so far."""


class JointPosition(ActionMode):
    """One target per arm joint [rad], then, for a robot with a gripper, the distance between the fingers [m]."""

    name = "joint_position"

    def __init__(self, robot: Robot, backend: Backend, control_dt: float) -> None:
        names = (joint.rpartition("/")[2] for joint in robot.arm_joints)
        bounds = [*zip(names, robot.joint_low, robot.joint_high, strict=True)]
        super().__init__(robot, backend, control_dt, bounds, "rad")

    def joint_targets(self, backend: Backend, action: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the action's own joint targets. Shape: (num_envs, num_joints)."""
        del backend, held
        return action[:, : len(self.robot.arm_joints)]


class EndEffectorDelta(ActionMode):
    """A step of the tool centre point in the world frame [m, rad], then the distance between the fingers [m]."""

    name = "ee_delta"

    def __init__(self, robot: Robot, backend: Backend, control_dt: float) -> None:
        high = (MAX_TRANSLATION_M,) * 3 + (MAX_ROTATION_RAD,) * 3
        names = ("dx", "dy", "dz", "drx", "dry", "drz")
        bounds = [(name, -most, most) for name, most in zip(names, high, strict=True)]
        super().__init__(robot, backend, control_dt, bounds, "m, rotation rad")
        self.bound = torch.tensor(high, dtype=backend.qpos.dtype, device=backend.device)
        self.hold_action = (*(0.0 for _ in high), *(() if robot.gripper_actuator is None else (None,)))

    def joint_targets(self, backend: Backend, action: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the targets so far plus a damped-least-squares step. Shape: (num_envs, num_joints)."""
        jacobian = backend.jacobian(self.robot.hand_body, self.robot.tcp_site)[:, :, self.dofs]
        twist = torch.minimum(torch.maximum(action[:, :6], -self.bound), self.bound)

        # An arm with fewer than six joints makes the translation, and as much of the rotation as goes with it.
        robot = self.robot
        if robot.rotation_weight == 1.0:
            step = damped_least_squares(jacobian, twist, robot.ik_damping)
        else:
            step = step_within_limits(
                jacobian,
                twist,
                robot.ik_damping,
                rotation_weight=robot.rotation_weight,
                low=(self.low - held).clamp(max=0.0),
                high=(self.high - held).clamp(min=0.0),
            )

        # The step adds to the targets, not to the positions, so a zero action holds the arm under any load. Targets
        # lead the joints by at most `_MAX_LEAD_RAD`.
        wanted = held + step
        position = backend.qpos[:, self.positions]
        return torch.minimum(torch.maximum(wanted, position - _MAX_LEAD_RAD), position + _MAX_LEAD_RAD)


ACTION_MODES: dict[str, type[JointPosition | EndEffectorDelta]] = {
    mode.name: mode for mode in (JointPosition, EndEffectorDelta)
}
"""The action modes by the name of an option."""


class FloorActions:
    """Maps actions of a floor robot to controls and back."""

    def __init__(self, robot: FloorRobot, backend: Backend) -> None:
        names = tuple(actuator.rpartition("/")[2] for actuator in robot.actuators)
        bound = (robot.action_bound,) * len(names)
        self.spec = ArraySpec(shape=(len(names),), low=tuple(-value for value in bound), high=bound, names=names)
        self._bound = robot.action_bound
        self._indices = side_by_side(backend.actuator_indices(robot.actuators))
        dtype = backend.ctrl.dtype
        self._default = torch.tensor(robot.default_control, dtype=dtype, device=backend.device)
        self._scale = torch.tensor(robot.action_scale, dtype=dtype, device=backend.device)

    def controls(self, backend: Backend, action: torch.Tensor, centre: torch.Tensor | None = None) -> torch.Tensor:
        """Return controls (num_envs, nu) for actions (num_envs, action_dim); ``centre`` is that of a zero action."""
        controls = backend.ctrl.clone()
        bounded = action.to(controls.dtype).clamp(-self._bound, self._bound)
        controls[:, self._indices] = (self._default if centre is None else centre) + self._scale * bounded
        return controls

    def last(self, backend: Backend, centre: torch.Tensor | None = None) -> torch.Tensor:
        """Return the actions that gave the current controls, 0 after a reset. Shapes: as `controls`."""
        return (backend.ctrl[:, self._indices] - (self._default if centre is None else centre)) / self._scale


# Define observation terms: their names, their specifications, and their readers.

XYZ = ("x", "y", "z")


@dataclass(frozen=True, kw_only=True)
class ObservationTerm:
    """One entry of an observation group.

    Attributes:
        spec: Its specification.
        read: Returns it for every env slot. Shape: (num_envs, *spec.shape).
        is_point: Whether it is a point in the world, which policies see relative to the robot's base.
    """

    spec: ArraySpec
    read: Callable[[Backend], torch.Tensor]
    is_point: bool = False


def vector_term(
    names: tuple[str, ...], unit: str | None, read: Callable[[Backend], torch.Tensor], *, is_point: bool = False
) -> ObservationTerm:
    """Return a term of named numbers. ``read`` returns shape (num_envs, len(names))."""
    return ObservationTerm(spec=ArraySpec(shape=(len(names),), names=names, unit=unit), read=read, is_point=is_point)


def position_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a point in the world [m]; the robot's base is its origin."""
    return vector_term(XYZ, "m", read, is_point=True)


def offset_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is the offset from one point to another [m], independent of the robot's base."""
    return vector_term(XYZ, "m", read)


def orientation_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a unit quaternion, w x y z."""
    return vector_term(("w", "x", "y", "z"), None, read)


def number_term(name: str, unit: str, read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a single number. ``read`` returns shape (num_envs, 1)."""
    return vector_term((name,), unit, read)


def read_terms(
    terms: Mapping[str, ObservationTerm], backend: Backend, device: torch.device, origin: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Return all terms as float32 on a device, each (num_envs, *spec.shape); they share no memory with others."""
    values = {name: term.read(backend) for name, term in terms.items()}
    # ``origin`` is the place of the robot's base [m], (num_envs, 3), None for the world's origin.
    if origin is not None:
        values |= {name: values[name] - origin for name, term in terms.items() if term.is_point}
    if any(value.ndim != 2 for value in values.values()):
        return {name: value.to(device, torch.float32, copy=True) for name, value in values.items()}
    # One contiguous block: one copy of all takes the time of two single terms.
    together = torch.cat(tuple(values.values()), dim=1).to(device, torch.float32)
    return SideBySide(together, {name: value.shape[1] for name, value in values.items()})


# Compute a robot's proprioception, in its own frame, as in Isaac Lab and mjlab.


class FloorSenses:
    """Reads the motion of a floor robot, from its simulation or from other states of its model."""

    def __init__(self, robot: FloorRobot, backend: NamedState) -> None:
        self._backend = backend
        self._robot = robot
        self._root = robot.free_joint or robot.root_body
        positions, self._dofs = backend.joint_indices(robot.joints)
        self._positions = side_by_side(positions)
        like = {"dtype": backend.qpos.dtype, "device": backend.device}
        self._default = torch.tensor(robot.default_joint_position, **like)
        self._down = torch.tensor([[0.0, 0.0, -1.0]], **like).expand(len(backend.qpos), 3)

    def linear_velocity(self) -> torch.Tensor:
        """Return the root's velocity in its own frame [m/s]. Shape: (num_envs, 3)."""
        orientation = self._backend.body_orientation(self._robot.root_body)
        return rotate_inverse(orientation, self._backend.joint_velocity(self._root)[:, :3])

    def angular_velocity(self) -> torch.Tensor:
        """Return the root's angular velocity in its own frame [rad/s]. Shape: (num_envs, 3)."""
        return self._backend.joint_velocity(self._root)[:, 3:]

    def gravity(self) -> torch.Tensor:
        """Return the unit vector of gravity in the root's frame. Shape: (num_envs, 3)."""
        return rotate_inverse(self._backend.body_orientation(self._robot.root_body), self._down)

    def joint_position(self) -> torch.Tensor:
        """Return the joints' offsets from the default posture [rad]. Shape: (num_envs, num_joints)."""
        return self._backend.qpos[:, self._positions] - self._default

    def joint_velocity(self) -> torch.Tensor:
        """Return the joints' velocities [rad/s]. Shape: (num_envs, num_joints)."""
        return self._backend.qvel[:, self._dofs]


def sense_terms(robot: FloorRobot, senses: Callable[[], FloorSenses]) -> dict[str, ObservationTerm]:
    """Return a robot's proprioceptive terms; ``senses`` is called once there is a simulation."""
    joints = tuple(joint.rpartition("/")[2] for joint in robot.joints)
    return {
        "base_lin_vel": vector_term(XYZ, "m/s", lambda _: senses().linear_velocity()),
        "base_ang_vel": vector_term(XYZ, "rad/s", lambda _: senses().angular_velocity()),
        "projected_gravity": vector_term(XYZ, "", lambda _: senses().gravity()),
        "joint_pos": vector_term(joints, "rad", lambda _: senses().joint_position()),
        "joint_vel": vector_term(joints, "rad/s", lambda _: senses().joint_velocity()),
    }


def site_positions(state: NamedState, sites: Sequence[str]) -> torch.Tensor:
    """Return the positions of sites [m]. Shape: (num_envs, len(sites), 3)."""
    return torch.stack([state.site_position(site) for site in sites], dim=1)


def gait_clock(num_steps: int, state: NamedState) -> torch.Tensor:
    """Return cosine and sine of each step of a stride. Shape: (num_steps, 2)."""
    phases = [2 * math.pi * step / num_steps for step in range(num_steps)]
    return state.qpos.new_tensor([(math.cos(phase), math.sin(phase)) for phase in phases])
