"""Doors, drawers and a button."""

import torch

from isaaclab_arena.environments.tasks.articulated import (
    NUM_WAYPOINTS,
    OPEN_M,
    OPEN_RAD,
    PRESSED_STEPS,
    PULLED_M,
    PULLED_RAD,
    TRAVEL_M,
)
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, play, start
from tests.environments.moving import solve, turn_joint

SLIDE = "cabinet/slide"


def test_a_drawer_that_the_hand_pushes_in_is_shut():
    steps = solve(build("close_drawer"))
    assert steps[-1].success
    assert steps[-1].metrics["final_opening_m"] <= 0.01


def test_the_drawer_starts_open_and_stays_open_by_itself():
    env = build("close_drawer")
    start(env)
    opening = [env.step(hold_still(env)).metrics["final_opening_m"].item() for _ in range(20)]
    assert min(opening) > 0.11


def test_a_drawer_that_jumps_shut_does_not_count():
    env = build("close_drawer")
    start(env)
    turn_joint(env, SLIDE, 0.0)
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_opening_m"] < 0.01
    assert not any(step.success for step in steps)


def started():
    env = build("open_drawer")
    start(env)
    return env


def test_a_pulled_drawer_is_open():
    record = play(build("open_drawer"), ScriptedPolicy(), 1).records[0]
    assert record.success
    assert record.metrics["final_opening_m"] >= OPEN_M
    assert record.metrics["pulled_m"] >= PULLED_M


def test_a_drawer_that_jumps_open_is_not_pulled():
    env = started()
    env.backend.qpos[0, env.backend.names.joint_qpos[SLIDE]] = 0.2
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_opening_m"] > OPEN_M
    assert not any(step.success for step in steps)


def test_a_drawer_that_is_flung_open_without_a_hand_is_not_pulled():
    env = started()
    env.backend.qvel[0, env.backend.names.joint_dof[SLIDE]] = 3.0
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_opening_m"] > OPEN_M
    assert steps[-1].metrics["pulled_m"] == 0
    assert not any(step.success for step in steps)


def test_a_drawer_that_jumps_open_in_the_hand_is_not_pulled():
    env = started()
    policy, observation = ScriptedPolicy(), start(env)
    while policy._player is None or policy._player.phase[0] < 3:
        observation = env.step(policy.get_action(env, observation)).observation
    env.backend.qpos[0, env.backend.names.joint_qpos[SLIDE]] = 0.2
    step = env.step(hold_still(env))
    assert step.metrics["pulled_m"] < PULLED_M / 2
    assert not step.success


def test_the_closed_cabinet_is_solid_and_the_drawer_stays_shut_by_itself():
    env = started()
    before = env.backend.joint_position(SLIDE).clone()
    for _ in range(20):
        env.step(hold_still(env))
    torch.testing.assert_close(env.backend.joint_position(SLIDE), before, atol=1e-4, rtol=0)


def test_the_handle_moves_with_the_drawer():
    env = started()
    record = {name: value.clone() for name, value in start(env)["policy"].items()}
    env.backend.qpos[0, env.backend.names.joint_qpos[SLIDE]] += 0.1
    after = env.step(hold_still(env)).observation["policy"]
    assert abs((record["handle_pos"] - after["handle_pos"])[0, 0] - 0.1) < 0.01
    assert abs((after["drawer_opening"] - record["drawer_opening"])[0, 0] - 0.1) < 0.01


HINGE = "microwave/hinge"


def test_a_door_pulled_by_its_handle_is_open():
    steps = solve(build("open_microwave"))
    assert steps[-1].success
    assert steps[-1].metrics["final_angle_rad"] >= OPEN_RAD
    assert steps[-1].metrics["pulled_rad"] >= PULLED_RAD


def test_a_door_that_swings_open_without_a_hand_is_not_pulled():
    env = build("open_microwave")
    start(env)
    turn_joint(env, HINGE, 1.2)
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_angle_rad"] > OPEN_RAD
    assert not any(step.success for step in steps)


def test_the_door_stays_shut_by_itself():
    env = build("open_microwave")
    start(env)
    angles = [env.step(hold_still(env)).metrics["final_angle_rad"].item() for _ in range(20)]
    assert max(angles) < 0.01


def test_the_waypoints_lie_on_the_way_of_the_handle():
    env = build("open_microwave")
    start(env)
    for number, degrees in zip(range(1, NUM_WAYPOINTS + 1), (15, 30, 45, 60, 72), strict=True):
        turn_joint(env, HINGE, degrees * torch.pi / 180)
        env.step(hold_still(env))
        handle, way = (env.backend.site_position(f"microwave/{name}")[0] for name in ("handle", f"way_{number}"))
        torch.testing.assert_close(handle, way, atol=2e-3, rtol=0)


PRESS = "button/press"


def test_a_button_that_the_hand_holds_down_is_pressed():
    steps = solve(build("press_button"))
    assert steps[-1].success
    assert steps[-1].metrics["final_press_m"] > 0.9 * TRAVEL_M


def test_the_spring_brings_the_button_up_again():
    env = build("press_button")
    start(env)
    turn_joint(env, PRESS, TRAVEL_M)
    for _ in range(10):
        env.step(hold_still(env))
    assert env.backend.joint_position(PRESS)[0, 0] < 0.1 * TRAVEL_M


def test_a_button_that_goes_down_without_the_hand_does_not_count():
    env = build("press_button")
    start(env)
    for _ in range(2 * PRESSED_STEPS):
        turn_joint(env, PRESS, TRAVEL_M)
        assert not env.step(hold_still(env)).success
