import math

import numpy as np
import pytest

from isaaclab_arena.environments.tasks.humanoid import HUMANOID
from isaaclab_arena.sim.scene import FloorRobotPoses

ROOT = np.array([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
JOINTS = np.zeros(len(HUMANOID.joints))


def test_sites_are_where_the_pose_has_them():
    poses = FloorRobotPoses(HUMANOID)
    straight = poses.positions(ROOT, JOINTS)
    raised = JOINTS.copy()
    raised[HUMANOID.joints.index("robot/left_shoulder_roll")] = math.pi / 2
    places = poses.site_positions(np.array([straight, poses.positions(ROOT, raised)]), ["robot/left_hand"])
    hanging, level = places[:, 0]
    assert hanging == pytest.approx([0.0, 0.20, 1.0 + 0.42 - 0.515])
    assert level == pytest.approx([0.0, 0.20 + 0.515, 1.42])


def test_velocities_follow_from_neighbouring_poses():
    poses = FloorRobotPoses(HUMANOID)
    turns = [0.0, 0.1, 0.2]
    roots = [np.array([0.5 * turn, 0.0, 1.0, math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)]) for turn in turns]
    bent = [np.full_like(JOINTS, turn) for turn in turns]
    positions = np.array([poses.positions(*pose) for pose in zip(roots, bent, strict=True)])
    velocities = poses.velocities(positions, 0.1)
    assert velocities[:, poses.root_dofs] == pytest.approx(np.tile([0.5, 0, 0, 0, 0, 1.0], (3, 1)))
    assert velocities[:, poses.joint_dofs] == pytest.approx(np.ones((3, len(JOINTS))))


def test_limits_are_in_the_robot_s_order():
    low, high = FloorRobotPoses(HUMANOID).joint_limits()
    knee = HUMANOID.joints.index("robot/right_knee")
    assert (low[knee], high[knee]) == pytest.approx((-0.05, 2.3))
