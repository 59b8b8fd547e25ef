"""What a machine feels of itself, in its own frame, as in Isaac Lab and mjlab."""

from collections.abc import Callable

import torch

from isaaclab_arena.environments.mdp.legged_actions import MachineActions
from isaaclab_arena.environments.mdp.observations import ObservationTerm
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.math.rotation import rotate_inverse
from isaaclab_arena.sim.scene.legged_robot import Machine

_XYZ = ("x", "y", "z")


class MachineSenses:
    """Reads how a machine with a free joint moves.

    Args:
        machine: The machine.
        backend: The simulation that it stands in.
    """

    def __init__(self, machine: Machine, backend: Backend) -> None:
        self._backend = backend
        self._machine = machine
        self._root = machine.free_joint or machine.root_body
        self._positions, self._dofs = backend.joint_indices(machine.joints)
        like = {"dtype": backend.qpos.dtype, "device": backend.device}
        self._default = torch.tensor(machine.default_joint_position, **like)
        self._down = torch.tensor([[0.0, 0.0, -1.0]], **like).expand(backend.num_envs, 3)

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
        return self._backend.body_orientation(self._machine.root_body)


def sense_terms(machine: Machine, senses: Callable[[], MachineSenses]) -> dict[str, ObservationTerm]:
    """Return what a machine feels of itself as observation terms.

    Args:
        machine: The machine.
        senses: Returns its senses, once there is a simulation.
    """
    joints = tuple(joint.rpartition("/")[2] for joint in machine.joints)
    return {
        "base_lin_vel": vector_term(_XYZ, "m/s", lambda _: senses().linear_velocity()),
        "base_ang_vel": vector_term(_XYZ, "rad/s", lambda _: senses().angular_velocity()),
        "projected_gravity": vector_term(_XYZ, "", lambda _: senses().gravity()),
        "joint_pos": vector_term(joints, "rad", lambda _: senses().joint_position()),
        "joint_vel": vector_term(joints, "rad/s", lambda _: senses().joint_velocity()),
    }


def last_action_term(machine: Machine, actions: Callable[[], MachineActions]) -> ObservationTerm:
    """Return the action of which the controls are the result, 0 before the first.

    Args:
        machine: The machine.
        actions: Returns what actions mean, once there is a simulation.
    """
    names = tuple(actuator.rpartition("/")[2] for actuator in machine.actuators)
    return vector_term(names, "", lambda backend: actions().last(backend))


def vector_term(names: tuple[str, ...], unit: str, read: Callable[[Backend], torch.Tensor]) -> ObservationTerm:
    """Return a term of named numbers. ``read`` returns shape (num_envs, len(names))."""
    return ObservationTerm(spec=ArraySpec(shape=(len(names),), names=names, unit=unit), read=read)
