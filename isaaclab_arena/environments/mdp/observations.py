"""Observation terms: their names and shapes, and how they are read from the simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from isaaclab_arena.environments.mdp.actions import FloorActions
from isaaclab_arena.interfaces.environment import SideBySide
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend, NamedState, side_by_side
from isaaclab_arena.sim.math import rotate_inverse
from isaaclab_arena.sim.scene.scene import FloorRobot, Robot

# Define observation terms: their names, their specifications, and their readers.

_XYZ = ("x", "y", "z")
_WXYZ = ("w", "x", "y", "z")


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


def position_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a point in the world [m]; the robot's base is its origin."""
    return ObservationTerm(spec=ArraySpec(shape=(3,), names=_XYZ, unit="m"), read=read, is_point=True)


def offset_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is the offset from one point to another [m], independent of the robot's base."""
    return ObservationTerm(spec=ArraySpec(shape=(3,), names=_XYZ, unit="m"), read=read)


def orientation_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a unit quaternion, w x y z."""
    return ObservationTerm(spec=ArraySpec(shape=(4,), names=_WXYZ), read=read)


def number_term(name: str, unit: str, read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a single number. ``read`` returns shape (num_envs, 1)."""
    return ObservationTerm(spec=ArraySpec(shape=(1,), names=(name,), unit=unit), read=read)


def body_pose_terms(name: str, body: str) -> dict[str, ObservationTerm]:
    """Return the terms ``<name>_pos`` and ``<name>_quat`` of a body."""
    return {
        f"{name}_pos": position_term(lambda backend: backend.body_position(body)),
        f"{name}_quat": orientation_term(lambda backend: backend.body_orientation(body)),
    }


def robot_terms(robot: Robot, backend: Backend) -> dict[str, ObservationTerm]:
    """Return the terms of the robot in every task: joints, gripper and end effector."""
    joints = tuple(name.rpartition("/")[2] for name in robot.arm_joints)
    fingers = tuple(name.rpartition("/")[2] for name in robot.finger_joints)
    positions, dofs = (side_by_side(indices) for indices in backend.joint_indices(robot.arm_joints))
    terms = {
        "robot_joint_pos": ObservationTerm(
            spec=ArraySpec(shape=(len(joints),), names=joints, unit="rad"),
            read=lambda backend: backend.qpos[:, positions],
        ),
        "robot_joint_vel": ObservationTerm(
            spec=ArraySpec(shape=(len(joints),), names=joints, unit="rad/s"),
            read=lambda backend: backend.qvel[:, dofs],
        ),
    }
    if fingers:
        finger_positions = side_by_side(backend.joint_indices(robot.finger_joints)[0])
        terms["gripper_pos"] = ObservationTerm(
            spec=ArraySpec(shape=(len(fingers),), names=fingers, unit=robot.finger_unit),
            read=lambda backend: backend.qpos[:, finger_positions],
        )
    terms["eef_pos"] = position_term(lambda backend: backend.site_position(robot.tcp_site))
    terms["eef_quat"] = orientation_term(lambda backend: backend.body_orientation(robot.hand_body))
    return terms


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
        return rotate_inverse(self._orientation(), self._backend.joint_velocity(self._root)[:, :3])

    def angular_velocity(self) -> torch.Tensor:
        """Return the root's angular velocity in its own frame [rad/s]. Shape: (num_envs, 3)."""
        return self._backend.joint_velocity(self._root)[:, 3:]

    def gravity(self) -> torch.Tensor:
        """Return the unit vector of gravity in the root's frame. Shape: (num_envs, 3)."""
        return rotate_inverse(self._orientation(), self._down)

    def joint_position(self) -> torch.Tensor:
        """Return the joints' offsets from the default posture [rad]. Shape: (num_envs, num_joints)."""
        return self._backend.qpos[:, self._positions] - self._default

    def joint_velocity(self) -> torch.Tensor:
        """Return the joints' velocities [rad/s]. Shape: (num_envs, num_joints)."""
        return self._backend.qvel[:, self._dofs]

    def _orientation(self) -> torch.Tensor:
        return self._backend.body_orientation(self._robot.root_body)


def sense_terms(robot: FloorRobot, senses: Callable[[], FloorSenses]) -> dict[str, ObservationTerm]:
    """Return a robot's proprioceptive terms; ``senses`` is called once there is a simulation."""
    joints = tuple(joint.rpartition("/")[2] for joint in robot.joints)
    return {
        "base_lin_vel": vector_term(_XYZ, "m/s", lambda _: senses().linear_velocity()),
        "base_ang_vel": vector_term(_XYZ, "rad/s", lambda _: senses().angular_velocity()),
        "projected_gravity": vector_term(_XYZ, "", lambda _: senses().gravity()),
        "joint_pos": vector_term(joints, "rad", lambda _: senses().joint_position()),
        "joint_vel": vector_term(joints, "rad/s", lambda _: senses().joint_velocity()),
    }


def last_action_term(robot: FloorRobot, actions: Callable[[], FloorActions]) -> ObservationTerm:
    """Return the term of the action that gave the current controls, 0 before the first."""
    names = tuple(actuator.rpartition("/")[2] for actuator in robot.actuators)
    return vector_term(names, "", lambda backend: actions().last(backend))


def vector_term(names: tuple[str, ...], unit: str, read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term of named numbers. ``read`` returns shape (num_envs, len(names))."""
    return ObservationTerm(spec=ArraySpec(shape=(len(names),), names=names, unit=unit), read=read)
