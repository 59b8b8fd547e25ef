"""The arms that tasks are built with."""

from collections.abc import Sequence

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.environments.robots.embodiment import PANDA, SO101, Embodiment
from isaaclab_arena.interfaces.episode import Outcome, point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import rotation_error
from isaaclab_arena.sim.scene import ASSETS
from tests.environments.building import build, episode, play, refusal, start, steps_of

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


@pytest.mark.parametrize(("arm", "gripper"), [(PANDA, (0.0, 0.04)), (SO101, (-0.174533, 1.74533))])
def test_limits_and_torques_are_those_of_the_arms_file_and_home_is_within_them(arm, gripper):
    model, robot = mujoco.MjModel.from_xml_path(str(ASSETS / arm.asset)), arm.robot
    limits, number = list(zip(robot.joint_low, robot.joint_high, strict=True)), len(robot.home)
    np.testing.assert_array_equal(model.jnt_range[:number], limits)
    np.testing.assert_allclose(model.jnt_range[number:], [gripper] * (model.njnt - number))
    np.testing.assert_array_equal(model.actuator_forcerange[:number, 1], robot.joint_torque_limit)
    assert all(low < home < high for (low, high), home in zip(limits, robot.home, strict=True))
    assert robot.gripper_width == 0.08


def posed(arm: Embodiment, joints: Sequence[float]) -> mujoco.MjData:
    model = mujoco.MjModel.from_xml_path(str(ASSETS / arm.asset))
    data = mujoco.MjData(model)
    data.qpos[: len(joints)] = joints
    mujoco.mj_kinematics(model, data)
    return data


@pytest.mark.parametrize("joints", [PANDA.robot.home, *POSES])
def test_forward_kinematics_are_those_of_the_published_parameters(joints):
    data, expected = posed(PANDA, joints), tcp_pose(joints)
    np.testing.assert_allclose(data.site("tcp").xpos, expected[:3, 3], atol=1e-6)
    np.testing.assert_allclose(data.site("tcp").xmat.reshape(3, 3), expected[:3, :3], atol=1e-6)
    if joints == PANDA.robot.home:
        np.testing.assert_allclose(expected[:3, 2], [0, 0, -1], atol=1e-6)


# What so101_new_calib.xml says of each joint: its frame in the frame before it, as a position [m] and a quaternion.
PUBLISHED_FRAMES = (
    ((0.0388353, 0.0, 0.0624), (0.0, 0.0, -1.0, 0.0)),
    ((-0.0303992, -0.0182778, -0.0542), (0.5, -0.5, -0.5, -0.5)),
    ((-0.11257, -0.028, 0.0), (0.707107, 0.0, 0.0, 0.707107)),
    ((-0.1349, 0.0052, 0.0), (0.707107, 0.0, 0.0, -0.707107)),
    ((0.0, -0.0611, 0.0181), (0.0172091, -0.0172091, 0.706897, 0.706897)),
)
# Where the published tip of the gripper lies from our tool centre point: on the jaw that does not move, 4 cm aside.
PUBLISHED_TIP_M = (-0.0079, -0.000218, -0.0981274)
SO101_POSES = ((0, 0, 0, 0, 0), (0.4, -0.5, 0.8, 1.1, -0.6), (-1.1, 0.9, -1.2, -0.7, 2.0))


def pose(position, quaternion) -> np.ndarray:
    matrix = np.eye(4)
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, np.array(quaternion) / np.linalg.norm(quaternion))
    matrix[:3, :3], matrix[:3, 3] = rotation.reshape(3, 3), position
    return matrix


def published_gripper(joints) -> np.ndarray:
    matrix = np.eye(4)
    for (position, quaternion), angle in zip(PUBLISHED_FRAMES, joints, strict=True):
        matrix = matrix @ pose(position, quaternion) @ pose((0, 0, 0), (np.cos(angle / 2), 0, 0, np.sin(angle / 2)))
    return matrix


@pytest.mark.parametrize("joints", SO101_POSES)
def test_forward_kinematics_are_those_of_the_published_description(joints):
    data, gripper = posed(SO101, joints), published_gripper(joints)
    tool = data.site("tcp").xmat.reshape(3, 3)
    np.testing.assert_allclose(data.body("gripper").xpos, gripper[:3, 3], atol=2e-4)
    np.testing.assert_allclose(tool[:, 2], -gripper[:3, 2], atol=1e-4)
    np.testing.assert_allclose(tool[:, 1], gripper[:3, 0], atol=1e-4)
    tip = gripper @ np.array((*PUBLISHED_TIP_M, 1.0))
    np.testing.assert_allclose(tool.T @ (tip[:3] - data.site("tcp").xpos), (0.0, -0.04, 0.008), atol=6e-4)


@pytest.mark.parametrize("width_m", [0.0, 0.04, 0.08])
def test_the_jaws_are_as_far_apart_as_the_gripper_is_told(width_m):
    env = build("reach", embodiment="so101")
    start(env)
    action = torch.tensor([[*SO101.robot.home, width_m]])
    steps_of(env, action, 30)
    assert isinstance(env.backend, MujocoBackend)
    _, data = env.backend.visible_world(0)
    hand = data.body("robot/hand")
    moving, fixed = data.geom("robot/moving_pad"), data.geom("robot/fixed_pad")
    apart = hand.xmat.reshape(3, 3)[:, 1] @ (moving.xpos - fixed.xpos) - 0.004 - 0.0015
    assert apart == pytest.approx(width_m, abs=0.004)


def test_a_turn_that_five_joints_cannot_make_leaves_the_tool_in_its_place():
    env = build("lift_object", embodiment="so101", action_mode="ee_delta")
    start(env)
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.08]])
    before = steps_of(env, still, 15)[-1].observation["policy"]
    env.step(still + torch.tensor([[0.0, 0, 0, 0.2, 0, 0, 0]]))
    after = steps_of(env, still, 25)[-1].observation["policy"]
    assert (after["eef_pos"] - before["eef_pos"]).norm() < 0.01
    assert rotation_error(after["eef_quat"], before["eef_quat"]).abs().max() < 0.19


@pytest.mark.parametrize(
    ("task", "mode", "options"),
    [
        ("reach", "ee_delta", {}),
        ("lift_object", "joint_position", {"object": "cube"}),
        ("lift_object", "ee_delta", {"object": "can"}),
        ("push_to_goal", "ee_delta", {"object": "cube"}),
        ("press_button", "joint_position", {}),
        ("pick_and_place", "joint_position", {"object": "cylinder"}),
    ],
)
def test_the_scripted_policy_solves_its_tasks(task, mode, options):
    ends = play(build(task, num_envs=4, embodiment="so101", action_mode=mode, **options), ScriptedPolicy(), 4)
    assert [record.outcome for record in ends.records.values()] == [Outcome.SUCCESS] * 4


def test_what_is_drawn_lies_in_its_workspace():
    env = build("pick_and_place", embodiment="so101")
    for index in range(30):
        conditions = env.draw_conditions(episode(index).conditions_generator())
        for name in ("cube.position", "bin.position"):
            x, y, _ = point(conditions[name])
            assert 0.20 <= x <= 0.27
            assert np.hypot(x, y) < SO101.workspace.reach_m


@pytest.mark.parametrize(
    ("task", "options", "key", "reasons"),
    [
        ("open_drawer", {}, "embodiment", ("0.72 m", "'so101'", "0.39 m")),
        ("lift_object", {"object": "cracker_box"}, "object", ("'cracker_box'", "0.20 m", "'so101'", "0.17 m")),
        ("sort_two", {}, "embodiment", ("too small", "two bins")),
    ],
    ids=["out of reach", "too tall", "too wide"],
)
def test_a_task_too_large_for_the_arm_is_refused_with_the_reason(task, options, key, reasons):
    (problem,) = refusal(task, embodiment="so101", **options).problems
    assert problem.key == key
    assert all(reason in problem.message for reason in reasons)
