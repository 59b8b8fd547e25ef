"""The arms that tasks are built with."""

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.environments.robots.embodiment import PANDA, SO101
from isaaclab_arena.interfaces.episode import Outcome, point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import rotation_error
from isaaclab_arena.sim.scene import ASSETS
from tests.environments.building import build, episode, play, refusal, start, steps_of


@pytest.mark.parametrize(("arm", "gripper"), [(PANDA, (0.0, 0.04)), (SO101, (-0.174533, 1.74533))])
def test_limits_and_torques_are_those_of_the_arms_file_and_home_is_within_them(arm, gripper):
    model, robot = mujoco.MjModel.from_xml_path(str(ASSETS / arm.asset)), arm.robot
    limits, number = list(zip(robot.joint_low, robot.joint_high, strict=True)), len(robot.home)
    np.testing.assert_array_equal(model.jnt_range[:number], limits)
    np.testing.assert_allclose(model.jnt_range[number:], [gripper] * (model.njnt - number))
    np.testing.assert_array_equal(model.actuator_forcerange[:number, 1], robot.joint_torque_limit)
    assert all(low < home < high for (low, high), home in zip(limits, robot.home, strict=True))
    assert robot.gripper_width == 0.08


POSES = (
    (PANDA, PANDA.robot.home, (0.4244, 0.0, 0.3610), (0.0, 0.0, -1.0), (1.0, 0.0, 0.0)),
    (
        PANDA,
        (0.3, 0.5, -0.7, -1.1, 1.3, 2.2, -1.9),
        (0.8001, -0.0492, 0.6343),
        (0.7964, 0.4502, -0.4038),
        (-0.4831, 0.8753, 0.0232),
    ),
    (
        PANDA,
        (-2.0, -1.2, 2.1, -2.9, -0.4, 0.2, 2.5),
        (0.1438, 0.0570, 0.3712),
        (0.0227, 0.8106, 0.5851),
        (0.7648, -0.3910, 0.5120),
    ),
    (SO101, (0, 0, 0, 0, 0), (0.3834, -0.0020, 0.2664), (1.0, 0.0, 0.0), (0.0, 0.9988, 0.0487)),
    (
        SO101,
        (0.4, -0.5, 0.8, 1.1, -0.6),
        (0.1990, -0.0891, 0.0492),
        (0.1566, -0.0662, -0.9854),
        (0.8587, 0.5021, 0.1027),
    ),
    (
        SO101,
        (-1.1, 0.9, -1.2, -0.7, 2.0),
        (0.1733, 0.3298, 0.3304),
        (0.2451, 0.4815, 0.8415),
        (0.6854, 0.5278, -0.5017),
    ),
)
"""Where the tool is [m], where it points and its x axis, as computed from what the makers publish.

That is Franka's table of Denavit-Hartenberg parameters, and the frames of so101_new_calib.xml.
"""


@pytest.mark.parametrize(("arm", "joints", "place", "ahead", "aside"), POSES)
def test_forward_kinematics_are_the_published_ones(arm, joints, place, ahead, aside):
    model = mujoco.MjModel.from_xml_path(str(ASSETS / arm.asset))
    data = mujoco.MjData(model)
    data.qpos[: len(joints)] = joints
    mujoco.mj_kinematics(model, data)
    axes, off = data.site("tcp").xmat.reshape(3, 3), 1e-4 if arm is PANDA else 1e-3
    np.testing.assert_allclose(data.site("tcp").xpos, place, atol=off)
    np.testing.assert_allclose(axes[:, 2], ahead, atol=off)
    np.testing.assert_allclose(axes[:, 0], aside, atol=off)


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
