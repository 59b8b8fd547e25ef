"""Poses of a robot, without simulating it: where its sites are, and how fast it goes from one to the next."""

from collections.abc import Sequence

import mujoco
import numpy as np

from isaaclab_arena.sim.scene.floor_robot import FloorRobot
from isaaclab_arena.sim.scene.scene import ScenePart, compose_scene


class FloorRobotPoses:
    """Forward kinematics of a robot with a free root.

    Legend: n poses, k joints, q positions and v degrees of freedom of the model.

    Args:
        robot: The robot; it must have a free joint.

    Attributes:
        root_dofs: The root's degrees of freedom. Shape: (6,).
        joint_dofs: The joints' degrees of freedom, in the robot's order. Shape: (k,).
    """

    def __init__(self, robot: FloorRobot) -> None:
        self._model = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=robot.asset),))
        self._data = mujoco.MjData(self._model)
        root = self._model.joint(robot.free_joint)
        self._joints = [self._model.joint(name) for name in robot.joints]
        self._root_qpos = int(root.qposadr[0]) + np.arange(7)
        self._joint_qpos = np.array([int(joint.qposadr[0]) for joint in self._joints])
        self.root_dofs = int(root.dofadr[0]) + np.arange(6)
        self.joint_dofs = np.array([int(joint.dofadr[0]) for joint in self._joints])

    def joint_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest joint positions [rad]. Shapes: (k,), (k,)."""
        ranges = np.array([joint.range for joint in self._joints])
        return ranges[:, 0], ranges[:, 1]

    def positions(self, root: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """Return the model's positions in a pose. Shapes: (7,), (k,) -> (q,)."""
        positions = self._model.qpos0.copy()
        positions[self._root_qpos], positions[self._joint_qpos] = root, joints
        return positions

    def velocities(self, positions: np.ndarray, frame_dt: float) -> np.ndarray:
        """Return the velocities with which poses follow each other, from their neighbours. Shapes: (n, q) -> (n, v).

        Args:
            positions: Poses at equal times.
            frame_dt: Time between them [s].
        """
        last = len(positions) - 1
        velocities = np.zeros((len(positions), self._model.nv))
        for index, velocity in enumerate(velocities):
            before, after = max(index - 1, 0), min(index + 1, last)
            mujoco.mj_differentiatePos(
                self._model, velocity, (after - before) * frame_dt, positions[before], positions[after]
            )
        return velocities

    def site_positions(self, positions: np.ndarray, sites: Sequence[str]) -> np.ndarray:
        """Return where sites are in poses [m]. Shapes: (n, q) -> (n, len(sites), 3)."""
        indices = [self._model.site(name).id for name in sites]
        places = []
        for pose in positions:
            self._data.qpos[:] = pose
            mujoco.mj_kinematics(self._model, self._data)
            places.append(self._data.site_xpos[indices].copy())
        return np.array(places)
