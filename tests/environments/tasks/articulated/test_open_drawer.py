import torch

from isaaclab_arena.environments.tasks.articulated import OPEN_M, PULLED_M
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, play, start

SLIDE = "cabinet/slide"


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
