import mujoco
import numpy as np
import pytest

from isaaclab_arena.environments.robots.embodiment import PANDA
from isaaclab_arena.sim.scene import ASSETS

# Franka's published Denavit-Hartenberg parameters (Craig's convention): a [m], d [m], alpha [rad] of each joint.
DENAVIT_HARTENBERG = (
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -np.pi / 2),
    (0.0, 0.316, np.pi / 2),
    (0.0825, 0.0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0.0, 0.0, np.pi / 2),
    (0.088, 0.0, np.pi / 2),
)
FLANGE_M = 0.107
HAND_TURN_RAD = -np.pi / 4
TCP_M = 0.1034
POSES = (
    (0, -0.4, 0, -2.4, 0, 2.0, 0.7854),
    (0.3, 0.5, -0.7, -1.1, 1.3, 2.2, -1.9),
    (-2.0, -1.2, 2.1, -2.9, -0.4, 0.2, 2.5),
)


def link(a: float, d: float, alpha: float, theta: float) -> np.ndarray:
    ca, sa, ct, st = np.cos(alpha), np.sin(alpha), np.cos(theta), np.sin(theta)
    return np.array([[ct, -st, 0, a], [st * ca, ct * ca, -sa, -d * sa], [st * sa, ct * sa, ca, d * ca], [0, 0, 0, 1]])


def tcp_pose(joints) -> np.ndarray:
    pose = np.eye(4)
    for (a, d, alpha), theta in zip(DENAVIT_HARTENBERG, joints, strict=True):
        pose = pose @ link(a, d, alpha, theta)
    return pose @ link(0, FLANGE_M, 0, HAND_TURN_RAD) @ link(0, TCP_M, 0, 0)


@pytest.fixture(scope="module")
def model():
    return mujoco.MjModel.from_xml_path(str(ASSETS / PANDA.asset))


@pytest.mark.parametrize("joints", POSES)
def test_forward_kinematics_are_those_of_the_published_parameters(model, joints):
    data = mujoco.MjData(model)
    data.qpos[:7] = joints
    mujoco.mj_kinematics(model, data)
    expected = tcp_pose(joints)
    np.testing.assert_allclose(data.site("tcp").xpos, expected[:3, 3], atol=1e-6)
    np.testing.assert_allclose(data.site("tcp").xmat.reshape(3, 3), expected[:3, :3], atol=1e-6)


def test_joint_limits_are_the_published_ones(model):
    published = [
        (-2.8973, 2.8973),
        (-1.7628, 1.7628),
        (-2.8973, 2.8973),
        (-3.0718, -0.0698),
        (-2.8973, 2.8973),
        (-0.0175, 3.7525),
        (-2.8973, 2.8973),
    ]
    assert list(zip(PANDA.robot.joint_low, PANDA.robot.joint_high, strict=True)) == published
    np.testing.assert_array_equal(model.jnt_range[:7], published)
    np.testing.assert_allclose(model.actuator_ctrlrange[:7], published, atol=1e-12)


def test_velocity_and_torque_limits_are_the_published_ones(model):
    assert PANDA.robot.joint_velocity_limit == (2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61)
    assert PANDA.robot.joint_torque_limit == (87, 87, 87, 87, 12, 12, 12)
    np.testing.assert_array_equal(model.actuator_forcerange[:7, 1], PANDA.robot.joint_torque_limit)


def test_each_finger_slides_from_0_to_4_cm(model):
    np.testing.assert_array_equal(model.jnt_range[7:], [(0.0, 0.04), (0.0, 0.04)])
    assert PANDA.robot.gripper_width == 0.08


def test_home_is_within_the_limits_with_the_hand_pointing_down():
    robot = PANDA.robot
    assert all(low < home < high for low, home, high in zip(robot.joint_low, robot.home, robot.joint_high, strict=True))
    np.testing.assert_allclose(tcp_pose(robot.home)[:3, 2], [0, 0, -1], atol=1e-6)
