import math

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.tasks.velocity_go1 import COMMAND, GO1, SETTLING_S, STANDING_SHARE
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.sim.backends import MujocoBackend
from tests.environments.building import build_on_the_floor, episode, solved

STILL = (0.0, 0.0, 0.0)


def begin(*commands: tuple[float, ...], yaw: float = 0.0) -> tuple[FloorEnvironment, Observation]:
    """Start one env slot per command in the default posture."""
    env = build_on_the_floor("velocity_go1", num_envs=len(commands))
    posture = {"robot.joint_position": GO1.default_joint_position, "robot.yaw": yaw}
    return env, env.reset(torch.arange(len(commands)), [{**posture, COMMAND: command} for command in commands])


def put(env: FloorEnvironment, *, height: float, quaternion: tuple[float, ...]) -> None:
    env.backend.qpos[0, 2] = height
    env.backend.qpos[0, 3:7] = torch.tensor(quaternion).double()


def trot(step: int) -> torch.Tensor:
    """Return an action of a plain trot backwards: diagonal pairs lift their feet in turn and swing them."""
    action = torch.zeros(4, 3)
    for leg, pair in enumerate((0, 1, 1, 0)):
        phase = 2 * math.pi * (step * 0.02 / 0.4 + 0.5 * pair)
        lift = max(0.0, math.sin(phase))
        action[leg] = torch.tensor([0.0, lift - 0.7 * math.cos(phase), -2.0 * lift])
    return action.reshape(1, 12)


def test_a_robot_told_to_stand_stands_for_ten_seconds_without_being_told_how():
    env, _ = begin(STILL)
    steps = [env.step(torch.zeros(1, 12)) for _ in range(env.max_episode_length)]
    assert [bool(solved(step)) for step in steps] == [False] * 499 + [True]
    position = env.backend.qpos[0, :3]
    assert position[:2].norm() < 0.08
    assert 0.29 < position[2] < 0.34
    assert env.backend.qvel.abs().max() < 0.01


def test_standing_is_no_answer_to_a_command_to_move():
    env, _ = begin((0.5, 0.0, 0.0), (0.0, 0.0, 0.6), (0.0, 0.3, 0.0))
    steps = [env.step(torch.zeros(3, 12)) for _ in range(env.max_episode_length)]
    assert steps[-1].truncated.all()
    assert not any(step.terminated.any() for step in steps)
    metrics = steps[-1].metrics
    assert metrics["mean_speed_error_m_s"].tolist() == pytest.approx([0.5, 0.0, 0.3], abs=0.01)
    assert metrics["worst_turn_error_rad_s"].tolist() == pytest.approx([0.0, 0.6, 0.0], abs=0.01)


def test_a_hand_made_trot_takes_it_along():
    env, _ = begin(STILL)
    for index in range(150):
        env.step(trot(index))
    forward, sideways, height = env.backend.qpos[0, :3].tolist()
    assert forward < -0.8
    assert abs(sideways) < 0.5
    assert height > 0.25


def test_a_robot_that_tilts_by_more_than_sixty_degrees_is_lost():
    outcomes = []
    for degrees in (50, 65):
        env, _ = begin(STILL)
        half = math.radians(degrees) / 2
        put(env, height=0.6, quaternion=(math.cos(half), math.sin(half), 0.0, 0.0))
        outcomes.append(bool(env.step(torch.zeros(1, 12)).terminated))
    assert outcomes == [False, True]


def test_a_trunk_on_the_floor_is_lost():
    env, _ = begin(STILL)
    folded = torch.tensor([[0.0, 4.0, -4.0] * 4])
    steps = [env.step(folded) for _ in range(100)]
    assert any(step.terminated and not solved(step) for step in steps)


def test_a_push_after_it_has_settled_costs_the_episode():
    env, _ = begin(STILL)
    steps = [env.step(torch.zeros(1, 12)) for _ in range(300)]
    env.backend.qvel[0, 5] = 8.0
    steps += [env.step(torch.zeros(1, 12)) for _ in range(200)]
    assert steps[-1].truncated
    assert not solved(steps[-1])
    assert steps[299].metrics["worst_turn_error_rad_s"] < 0.05
    assert steps[-1].metrics["worst_turn_error_rad_s"] > 0.3


def test_the_time_before_it_has_settled_does_not_count():
    env, _ = begin(STILL)
    env.backend.qvel[0, 0] = 0.8
    steps = [env.step(torch.zeros(1, 12)) for _ in range(env.max_episode_length)]
    settled = round(SETTLING_S / 0.02)
    assert steps[settled - 1].metrics["worst_speed_error_m_s"] == 0
    assert [bool(steps[index].metrics["mean_speed_error_m_s"].isnan()) for index in (settled - 1, settled)] == [
        True,
        False,
    ]
    assert solved(steps[-1])


def test_what_it_feels_does_not_depend_on_where_it_looks():
    (_, seen), (_, turned) = begin((0.5, 0.1, 0.0)), begin((0.5, 0.1, 0.0), yaw=2.0)
    for term, value in seen["policy"].items():
        torch.testing.assert_close(turned["policy"][term], value)


def test_velocities_and_gravity_are_observed_in_the_robots_own_frame():
    env, _ = begin(STILL, yaw=math.pi / 2)
    env.backend.qvel[0, 1] = 0.5
    seen = env.step(torch.zeros(1, 12)).observation["policy"]
    assert seen["base_lin_vel"][0, 0] > 0.2
    assert abs(seen["base_lin_vel"][0, 1]) < 0.1
    assert seen["projected_gravity"][0, 2] == pytest.approx(-1, abs=0.01)


def test_the_last_action_and_the_command_are_observed():
    env, seen = begin((0.5, -0.2, 0.3))
    assert seen["policy"]["last_action"].abs().max() == 0
    assert seen["policy"]["velocity_command"][0].tolist() == pytest.approx([0.5, -0.2, 0.3])
    action = torch.linspace(-1, 1, 12)[None]
    torch.testing.assert_close(env.step(action).observation["policy"]["last_action"], action)


def test_the_clock_of_the_gait_goes_round_in_four_tenths_of_a_second():
    env, seen = begin((0.5, 0.0, 0.0))
    clock = [seen["policy"]["gait_clock"][0].tolist()]
    clock += [env.step(torch.zeros(1, 12)).observation["policy"]["gait_clock"][0].tolist() for _ in range(20)]
    assert clock[0] == clock[20] == [1.0, 0.0]
    assert clock[5] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_some_robots_are_told_to_stand():
    env = build_on_the_floor("velocity_go1")
    commands = [env.draw_conditions(episode(index).conditions_generator())[COMMAND] for index in range(400)]
    assert np.mean([command == STILL for command in commands]) == pytest.approx(STANDING_SHARE, abs=0.04)


def test_it_weighs_what_a_go1_weighs_and_touches_nothing_but_the_floor():
    backend = build_on_the_floor("velocity_go1").backend
    assert isinstance(backend, MujocoBackend)
    model = backend.model
    assert 12 < model.body_mass.sum() < 13
    assert [model.geom(int(index)).name for index in np.flatnonzero(model.geom_contype)] == ["floor"]
    assert not model.geom_conaffinity[model.geom("floor").id] & model.geom_contype[model.geom("robot/trunk").id]
    assert int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
