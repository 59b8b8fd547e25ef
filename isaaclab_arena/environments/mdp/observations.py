"""Observation terms: what each one is called, what it looks like, and how it is read from the simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from isaaclab_arena.interfaces.environment import SideBySide
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.named_state import side_by_side
from isaaclab_arena.sim.scene.robot import Robot

_XYZ = ("x", "y", "z")
_WXYZ = ("w", "x", "y", "z")


@dataclass(frozen=True, kw_only=True)
class ObservationTerm:
    """One entry of an observation group.

    Attributes:
        spec: What it looks like.
        read: Returns it for every env slot. Shape: (num_envs, *spec.shape).
        is_point: Whether it is a point in the world, which policies see from the robot's base.
    """

    spec: ArraySpec
    read: Callable[[Backend], torch.Tensor]
    is_point: bool = False


def position_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is a point in the world [m]; the robot's base is its origin."""
    return ObservationTerm(spec=ArraySpec(shape=(3,), names=_XYZ, unit="m"), read=read, is_point=True)


def offset_term(read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term that is the way from one point to another [m], the same wherever the robot's base stands."""
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
    """Return what every task observes of the robot: joints, gripper and end effector."""
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
    """Read all terms, as float32 copies on a device; they may share memory that is nobody else's.

    Args:
        terms: What is observed.
        backend: Where it is read.
        device: Where observations live.
        origin: Where the robot's base stands, if not at the world's origin [m]. Shape: (num_envs, 3).

    Returns:
        Shapes: (num_envs, *spec.shape).
    """
    values = {name: term.read(backend) for name, term in terms.items()}
    if origin is not None:
        values |= {name: values[name] - origin for name, term in terms.items() if term.is_point}
    if any(value.ndim != 2 for value in values.values()):
        return {name: value.to(device, torch.float32, copy=True) for name, value in values.items()}
    # Side by side in one piece of memory: one copy of all takes the time of two of single terms.
    together = torch.cat(tuple(values.values()), dim=1).to(device, torch.float32)
    return SideBySide(together, {name: value.shape[1] for name, value in values.items()})
