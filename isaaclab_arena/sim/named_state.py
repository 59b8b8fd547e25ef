"""The state of a batch of worlds, read by the names of joints, bodies, sites, actuators and sensors."""

from collections.abc import Sequence

import torch

from isaaclab_arena.sim.math.rotation import rotate
from isaaclab_arena.sim.model_names import ModelNames


class NamedState:
    """The state of worlds of one model, as tensors and by name.

    Attributes:
        names: Where named things are.
        device: Where the tensors live.
        qpos: Shape: (num_envs, nq).
        qvel: Shape: (num_envs, nv).
        ctrl: Shape: (num_envs, nu).
        xpos: Body positions [m]. Shape: (num_envs, nbody, 3).
        xquat: Body orientations. Shape: (num_envs, nbody, 4).
        site_xpos: Site positions [m]. Shape: (num_envs, nsite, 3).
        sensordata: Shape: (num_envs, nsensordata).
    """

    names: ModelNames
    device: torch.device
    qpos: torch.Tensor
    qvel: torch.Tensor
    ctrl: torch.Tensor
    xpos: torch.Tensor
    xquat: torch.Tensor
    site_xpos: torch.Tensor
    sensordata: torch.Tensor

    def joint_indices(self, joints: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entries of ``qpos`` and of ``qvel`` that belong to joints. Shapes: (sum of sizes,), int64."""
        positions = [index for name in joints for index in _entries(self.names.joint_qpos[name])]
        dofs = [index for name in joints for index in _entries(self.names.joint_dof[name])]
        return torch.tensor(positions, device=self.device), torch.tensor(dofs, device=self.device)

    def actuator_indices(self, actuators: Sequence[str]) -> torch.Tensor:
        """Return the entries of ``ctrl`` that belong to actuators. Shape: (len(actuators),), int64."""
        return torch.tensor([self.names.actuators[name] for name in actuators], device=self.device)

    def joint_position(self, joint: str) -> torch.Tensor:
        """Return a joint's position. Shape: (num_envs, 1), or (num_envs, 7) for a free joint."""
        return self.qpos[:, self.names.joint_qpos[joint]]

    def joint_velocity(self, joint: str) -> torch.Tensor:
        """Return a joint's velocity. Shape: (num_envs, 1), or (num_envs, 6) for a free joint."""
        return self.qvel[:, self.names.joint_dof[joint]]

    def body_position(self, body: str) -> torch.Tensor:
        """Return a body's position in the world [m]. Shape: (num_envs, 3)."""
        return self.xpos[:, self.names.bodies[body]]

    def body_orientation(self, body: str) -> torch.Tensor:
        """Return a body's orientation in the world. Shape: (num_envs, 4)."""
        return self.xquat[:, self.names.bodies[body]]

    def site_position(self, site: str) -> torch.Tensor:
        """Return a site's position in the world [m]. Shape: (num_envs, 3)."""
        return self.site_xpos[:, self.names.sites[site]]

    def sensor(self, sensor: str) -> torch.Tensor:
        """Return a sensor's reading. Shape: (num_envs, dim)."""
        return self.sensordata[:, self.names.sensors[sensor]]

    def touching(self, contact_sensor: str) -> torch.Tensor:
        """Return whether a contact sensor found a contact. Shape: (num_envs,), bool."""
        return self.sensordata[:, self.names.sensors[contact_sensor].start] > 0

    def free_velocity(self, joint: str) -> torch.Tensor:
        """Return the velocity of a free joint's body in the world: linear [m/s], angular [rad/s].

        Shape: (num_envs, 6).
        """
        velocity = self.joint_velocity(joint)
        angular = rotate(self.joint_position(joint)[:, 3:7], velocity[:, 3:6])
        return torch.cat((velocity[:, :3], angular), dim=-1)


def side_by_side(indices: torch.Tensor) -> torch.Tensor | slice:
    """Return entries as a slice if they follow one another, which is read and written in a third of the time.

    What a slice reads shares memory with what it is read from; what a tensor of entries reads does not.

    Args:
        indices: The entries. Shape: (n,), int64.
    """
    entries = indices.tolist()
    first = entries[0] if entries else 0
    return slice(first, first + len(entries)) if entries == list(range(first, first + len(entries))) else indices


def _entries(part: slice) -> range:
    return range(part.start, part.stop)
