import pytest
import torch

from isaaclab_arena.environments.mdp.spaces import MAX_TRANSLATION_M
from isaaclab_arena.sim.math import rotation_error
from tests.environments.building import build, episode, hold_still, start, steps_of


def settle(env, action: torch.Tensor, num_steps: int = 20) -> dict[str, torch.Tensor]:
    return steps_of(env, action, num_steps)[-1].observation["policy"]


def test_joints_go_where_a_joint_action_says():
    env = build("reach")
    start(env)
    goal = torch.tensor([[0.2, -0.3, 0.1, -2.2, 0.1, 2.1, 0.6, 0.03]])
    observation = settle(env, goal)
    torch.testing.assert_close(observation["robot_joint_pos"], goal[:, :7], atol=1e-3, rtol=0)
    torch.testing.assert_close(observation["gripper_pos"], torch.full((1, 2), 0.015), atol=1e-3, rtol=0)


def test_targets_never_outrun_the_joints_velocity_limits():
    env = build("reach")
    start(env)
    before = env.backend.ctrl.clone()
    env.step(torch.tensor([env.action_spec.high or ()]))
    moved = (env.backend.ctrl - before).abs()[0, env.action_mode.arm_controls]
    limit = torch.tensor(env.robot.joint_velocity_limit, dtype=torch.float64) * env.control_dt
    assert bool((moved <= limit + 1e-12).all())
    assert bool((moved > 0.9 * limit).any())


@pytest.mark.parametrize("extreme", [-1e6, 1e6])
def test_targets_stay_within_the_joint_limits_whatever_is_asked(extreme):
    env = build("reach")
    start(env)
    settle(env, torch.full((1, 8), extreme), 80)
    targets = env.backend.ctrl[0, env.action_mode.arm_controls]
    assert bool((targets >= torch.tensor(env.robot.joint_low).double() - 1e-6).all())
    assert bool((targets <= torch.tensor(env.robot.joint_high).double() + 1e-6).all())
    assert 0 <= env.backend.ctrl[0, env.action_mode.gripper_control] <= 0.04
    assert not env.backend.diverged.any()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_delta_moves_the_tool_by_that_much_and_does_not_turn_it(axis):
    env = build("lift_object", action_mode="ee_delta")
    start(env)
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.08]])
    before = settle(env, still, 10)
    move = still.clone()
    move[0, axis] = 0.03
    env.step(move)
    after = settle(env, still, 20)
    expected = torch.zeros(1, 3)
    expected[0, axis] = 0.03
    torch.testing.assert_close(after["eef_pos"] - before["eef_pos"], expected, atol=2.5e-3, rtol=0)
    assert rotation_error(after["eef_quat"], before["eef_quat"]).abs().max() < 0.01


def test_a_delta_turns_the_tool_in_the_world_frame():
    env = build("lift_object", action_mode="ee_delta")
    start(env)
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.08]])
    before = settle(env, still, 10)
    env.step(still + torch.tensor([[0.0, 0, 0, 0, 0, 0.1, 0]]))
    after = settle(env, still, 20)
    turned = rotation_error(after["eef_quat"], before["eef_quat"])
    torch.testing.assert_close(turned, torch.tensor([[0.0, 0.0, 0.1]]), atol=5e-3, rtol=0)


def test_a_delta_is_clipped_to_its_bounds():
    env = build("lift_object", num_envs=2, action_mode="ee_delta")
    conditions = env.draw_conditions(episode(0).conditions_generator())
    env.reset(torch.arange(2), [conditions, conditions])
    env.step(torch.tensor([[MAX_TRANSLATION_M, 0, 0, 0, 0, 0, 0.08], [99.0, 0, 0, 0, 0, 0, 99.0]]))
    torch.testing.assert_close(env.backend.ctrl[0], env.backend.ctrl[1], atol=1e-6, rtol=0)


def test_a_zero_delta_keeps_the_arm_where_it_is_told_to_be():
    env = build("lift_object", action_mode="ee_delta")
    start(env)
    before = env.backend.ctrl.clone()
    settle(env, torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.08]]), 30)
    torch.testing.assert_close(env.backend.ctrl, before, atol=1e-8, rtol=0)


def test_the_gripper_follows_the_width_in_both_modes():
    for mode in ("joint_position", "ee_delta"):
        env = build("lift_object", action_mode=mode)
        start(env)
        action = hold_still(env) if mode == "joint_position" else torch.zeros(1, 7)
        action[0, -1] = 0.05
        assert settle(env, action)["gripper_pos"][0].tolist() == pytest.approx([0.025, 0.025], abs=1e-3)
