"""The simulator's state in Isaac Lab's layout, for recordings."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from isaaclab_arena.environments.mdp.task import ArticulatedAsset
from isaaclab_arena.interfaces.environment import StateTree
from isaaclab_arena.sim.backend import Backend

_Read: TypeAlias = Callable[[np.ndarray], dict[str, np.ndarray]]


class StateReader:
    """Reads positions and velocities of robots and loose things.

    ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
    ``rigid_object/<name>/{root_pose,root_velocity}``. Shapes: (n, ...), in the backend's precision.

    Args:
        backend: The simulation.
        articulations: Name in recordings to each thing with joints, the robot among them.
        rigid_objects: Name in recordings to the free joint of each loose object.

    Attributes:
        parts: What the state is made of: `Backend`'s own tensors and views of them. Shape of each: (num_envs, n).
    """

    def __init__(
        self, backend: Backend, articulations: Mapping[str, ArticulatedAsset], rigid_objects: Mapping[str, str]
    ) -> None:
        self.parts: list[torch.Tensor] = [backend.qpos, backend.qvel]
        self._num_positions, self._width = backend.qpos.shape[1], backend.qpos.shape[1] + backend.qvel.shape[1]
        self._articulations = {name: self._articulation(backend, thing) for name, thing in articulations.items()}
        self._rigid_objects = {name: self._free(backend, joint) for name, joint in rigid_objects.items()}

    def tree(self, parts: np.ndarray) -> StateTree:
        """Return the state in Isaac Lab's layout; it shares memory with what it is made of.

        Args:
            parts: ``self.parts`` side by side, of any moments. Shape: (n, width).
        """
        return {
            "articulation": {name: read(parts) for name, read in self._articulations.items()},
            "rigid_object": {name: read(parts) for name, read in self._rigid_objects.items()},
        }

    def _articulation(self, backend: Backend, thing: ArticulatedAsset) -> _Read:
        positions, dofs = (indices.cpu().numpy() for indices in backend.joint_indices(thing.joints))
        dofs = dofs + self._num_positions
        root = self._fixed_root(backend, thing) if thing.free_joint is None else self._free(backend, thing.free_joint)

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            return {
                "joint_position": parts.take(positions, axis=1),
                "joint_velocity": parts.take(dofs, axis=1),
                **root(parts),
            }

        return read

    def _fixed_root(self, backend: Backend, thing: ArticulatedAsset) -> _Read:
        root = slice(self._width, self._width + 7)
        self.parts += [backend.body_position(thing.root_body), backend.body_orientation(thing.root_body)]
        self._width = root.stop

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            return {"root_pose": parts[:, root], "root_velocity": np.zeros_like(parts[:, root.start : root.stop - 1])}

        return read

    def _free(self, backend: Backend, joint: str) -> _Read:
        position, dof = backend.names.joint_qpos[joint], backend.names.joint_dof[joint]
        first = self._num_positions + dof.start

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            pose, velocity = parts[:, position], parts[:, first : first + 6]
            # A free joint's angular velocity is in the frame of its body.
            angular = _rotated(pose[:, 3:], velocity[:, 3:])
            return {"root_pose": pose, "root_velocity": np.concatenate((velocity[:, :3], angular), axis=1)}

        return read


_YZX, _ZXY = np.array([1, 2, 0]), np.array([2, 0, 1])


def _rotated(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Turn vectors by unit quaternions, to the bit as `sim.rotation.rotate` does. Shapes: (n, 4), (n, 3) -> (n, 3)."""
    yzx, zxy = quaternion.take(1 + _YZX, axis=1), quaternion.take(1 + _ZXY, axis=1)

    def cross(other: np.ndarray) -> np.ndarray:
        return yzx * other.take(_ZXY, axis=1) - zxy * other.take(_YZX, axis=1)

    twice = 2 * cross(vector)
    return vector + quaternion[:, :1] * twice + cross(twice)
