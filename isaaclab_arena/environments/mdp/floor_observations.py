"""Compute a robot's observations of itself, in its own frame, as in Isaac Lab and mjlab."""

from collections.abc import Callable

import torch

from isaaclab_arena.environments.mdp.floor_actions import FloorActions
from isaaclab_arena.environments.mdp.observations import ObservationTerm
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.math.rotation import rotate_inverse
from isaaclab_arena.sim.named_state import NamedState, side_by_side
from isaaclab_arena.sim.scene.floor_robot import FloorRobot

_XYZ = ("x", "y", "z")


class FloorSenses:
    """Reads how a robot with a free joint moves.

    Args:
        robot: The robot.
        backend: The simulation that it stands in, or other states of its model.
    """

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
        """Return how fast the root turns, in its own frame [rad/s]. Shape: (num_envs, 3)."""
        return self._backend.joint_velocity(self._root)[:, 3:]

    def gravity(self) -> torch.Tensor:
        """Return where down is in the root's frame, a unit vector. Shape: (num_envs, 3)."""
        return rotate_inverse(self._orientation(), self._down)

    def joint_position(self) -> torch.Tensor:
        """Return how far the joints are from the default posture [rad]. Shape: (num_envs, num_joints)."""
        return self._backend.qpos[:, self._positions] - self._default

    def joint_velocity(self) -> torch.Tensor:
        """Return how fast the joints turn [rad/s]. Shape: (num_envs, num_joints)."""
        return self._backend.qvel[:, self._dofs]

    def _orientation(self) -> torch.Tensor:
        return self._backend.body_orientation(self._robot.root_body)


def sense_terms(robot: FloorRobot, senses: Callable[[], FloorSenses]) -> dict[str, ObservationTerm]:
    """Return what a robot feels of itself as observation terms.

    Args:
        robot: The robot.
        senses: Returns its senses, once there is a simulation.
    """
    joints = tuple(joint.rpartition("/")[2] for joint in robot.joints)
    return {
        "base_lin_vel": vector_term(_XYZ, "m/s", lambda _: senses().linear_velocity()),
        "base_ang_vel": vector_term(_XYZ, "rad/s", lambda _: senses().angular_velocity()),
        "projected_gravity": vector_term(_XYZ, "", lambda _: senses().gravity()),
        "joint_pos": vector_term(joints, "rad", lambda _: senses().joint_position()),
        "joint_vel": vector_term(joints, "rad/s", lambda _: senses().joint_velocity()),
    }


def last_action_term(robot: FloorRobot, actions: Callable[[], FloorActions]) -> ObservationTerm:
    """Return the action of which the controls are the result, 0 before the first.

    Args:
        robot: The robot.
        actions: Returns what actions mean, once there is a simulation.
    """
    names = tuple(actuator.rpartition("/")[2] for actuator in robot.actuators)
    return vector_term(names, "", lambda backend: actions().last(backend))


def vector_term(names: tuple[str, ...], unit: str, read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term of named numbers. ``read`` returns shape (num_envs, len(names))."""
    return ObservationTerm(spec=ArraySpec(shape=(len(names),), names=names, unit=unit), read=read)
