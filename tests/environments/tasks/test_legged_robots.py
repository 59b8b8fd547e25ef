"""A quadruped that follows velocities and a humanoid that walks."""

import math

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.tasks.track_motion import TrackMotion
from isaaclab_arena.environments.tasks.velocity_go1 import COMMAND, GO1, SETTLING_S, STANDING_SHARE
from isaaclab_arena.environments.tasks.walk_humanoid import JOINTS, LOWEST_M, ROOT
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import multiply
from tests.environments.building import build_on_the_floor, episode, solved

# When tasks of robots are solved and lost, in the numbers that their descriptions state, written and not imported.

LITTLE = 1e-3
PELVIS = "robot/pelvis"
STILL = (0.0, 0.0, 0.0)


def judged(env: FloorEnvironment) -> Verdict:
    return env.task.judge(env.backend, torch.ones(env.num_envs, dtype=torch.bool))


def turned_about_x(degrees: float) -> torch.Tensor:
    half = math.radians(degrees) / 2
    return torch.tensor([math.cos(half), math.sin(half), 0.0, 0.0], dtype=torch.float64)


def walkers(speeds: list[float], *, yaw: float = 0.0) -> FloorEnvironment:
    """Return humanoids in their default posture, one for each speed."""
    env = build_on_the_floor("walk_humanoid", num_envs=len(speeds))
    start = {"robot.yaw": yaw, "robot.joint_position": env.robot.default_joint_position}
    env.reset(torch.arange(len(speeds)), [{**start, "command.speed": speed} for speed in speeds])
    return env


def test_a_humanoid_has_walked_when_it_has_come_seven_tenths_of_the_asked_way_in_500_steps():
    env = walkers([0.6, 0.6, 1.0, 1.0, 0.8])
    position = env.backend.body_position(PELVIS)
    start = position[:, 0].clone()
    ahead = torch.tensor([4.2 + LITTLE, 4.2 - LITTLE, 7.0 + LITTLE, 7.0 - LITTLE, -8.0], dtype=torch.float64)
    position[:, 0] = start + ahead
    for _ in range(498):
        judged(env)
    assert not judged(env).success.any()
    judgement = judged(env)
    assert judgement.success.tolist() == [True, False, True, False, False]
    assert judgement.metrics["asked_distance_m"].tolist() == pytest.approx([6.0, 6.0, 10.0, 10.0, 8.0])


def test_a_humanoid_has_fallen_below_half_a_metre_or_beyond_sixty_degrees():
    env = walkers([0.8] * 4)
    env.backend.body_position(PELVIS)[:, 2] = torch.tensor([0.5 + LITTLE, 0.5 - LITTLE, 0.9, 0.9])
    for env_id, degrees in ((2, 59.9), (3, 60.1)):
        env.backend.body_orientation(PELVIS)[env_id] = turned_about_x(degrees)
    assert judged(env).lost.tolist() == [False, True, False, True]


def begin(*commands: tuple[float, ...], yaw: float = 0.0) -> tuple[FloorEnvironment, Observation]:
    """Start one quadruped per command in the default posture."""
    env = build_on_the_floor("velocity_go1", num_envs=len(commands))
    posture = {"robot.joint_position": GO1.default_joint_position, "robot.yaw": yaw}
    return env, env.reset(torch.arange(len(commands)), [{**posture, COMMAND: command} for command in commands])


def test_a_robot_moves_as_told_within_a_quarter_of_a_metre_and_three_tenths_of_a_radian_a_second():
    """What it does is the same all the time, so that smoothing it changes nothing once the start has passed."""
    told = [(0.25 - LITTLE, 0, 0), (0.25 + LITTLE, 0, 0), (0, -0.25 - LITTLE, 0), (0, 0, 0.3 - LITTLE), (0, 0, -0.301)]
    env, _ = begin(*told)
    env.backend.qvel.zero_()
    for _ in range(499):
        assert not judged(env).success.any()
    judgement = judged(env)
    assert judgement.success.tolist() == [True, False, False, True, False]
    assert judgement.metrics["worst_speed_error_m_s"].tolist() == pytest.approx([0.249, 0.251, 0.251, 0, 0], abs=1e-6)
    assert judgement.metrics["mean_turn_error_rad_s"].tolist() == pytest.approx([0, 0, 0, 0.299, 0.301], abs=1e-6)


@pytest.mark.parametrize(("moment", "solved"), [(75, True), (76, False)])
def test_only_what_a_robot_does_after_75_steps_counts(moment, solved):
    """Up to the moment it stands, and so does its smoothed velocity; from then on it moves as it was told."""
    env, _ = begin((1.0, 0.0, 0.0))
    forward = env.backend.names.joint_dof["robot/free"].start
    judgements = []
    for step in range(1, 501):
        speed = 0.0 if step <= moment else 1.0
        env.task.memory()["_velocity"][0, 0] = env.backend.qvel[0, forward] = speed
        judgements.append(judged(env))
    assert bool(judgements[-1].success) is solved


def test_a_robot_is_lost_when_it_tilts_by_sixty_degrees_or_its_trunk_touches_the_floor():
    env, _ = begin(STILL, STILL, STILL)
    for env_id, degrees in ((0, 59.9), (1, 60.1)):
        env.backend.body_orientation("robot/trunk")[env_id] = turned_about_x(degrees)
    env.backend.sensor("trunk_touches_floor")[2, 0] = 1.0
    assert judged(env).lost.tolist() == [False, True, True]


def followers(num_envs: int) -> tuple[FloorEnvironment, TrackMotion]:
    env = build_on_the_floor("track_motion", num_envs=num_envs)
    conditions = {"motion.start_s": 0.0, "robot.joint_offset": (0.0,) * len(JOINTS)}
    env.reset(torch.arange(num_envs), [conditions] * num_envs)
    assert isinstance(env.task, TrackMotion)
    return env, env.task


def place(env: FloorEnvironment, task: TrackMotion, frame: int, errors_m: torch.Tensor) -> None:
    """Put pelvis and keypoints where the motion has them in a frame, the keypoints beside that."""
    motion, backend = task._motion, env.backend
    backend.body_position(PELVIS)[:] = torch.tensor(motion.root_position[frame])
    backend.body_orientation(PELVIS)[:] = torch.tensor(motion.root_orientation[frame])
    for index, site in enumerate(("head", "left_hand", "right_hand", "left_foot", "right_foot")):
        position = backend.site_position(f"robot/{site}")
        position[:] = torch.tensor(motion.keypoints[frame, index])
        position[:, 1] += errors_m


def test_a_motion_is_followed_when_its_keypoints_are_within_8_cm_on_average_over_all_steps():
    env, task = followers(3)
    errors = torch.tensor([0.08 - LITTLE, 0.08 + LITTLE, 0.0], dtype=torch.float64)
    judgements = []
    for frame in range(1, 301):
        errors[2] = 0.15 if frame <= 150 else 0.0
        place(env, task, frame, errors)
        judgements.append(judged(env))
    assert not any(judgement.success.any() for judgement in judgements[:-1])
    judgement = judgements[-1]
    assert judgement.success.tolist() == [True, False, True]
    assert judgement.metrics["mpkpe_m"].tolist() == pytest.approx([0.079, 0.081, 0.075], abs=1e-6)
    assert not judgement.lost.any()


def test_a_motion_is_lost_20_cm_above_or_below_it_or_turned_from_it_by_seven_tenths_of_a_radian():
    env, task = followers(5)
    place(env, task, 1, torch.zeros(5, dtype=torch.float64))
    heights = torch.tensor([0.2 - LITTLE, 0.2 + LITTLE, -0.2 - LITTLE, 0.0, 0.0], dtype=torch.float64)
    env.backend.body_position(PELVIS)[:, 2] += heights
    orientation = env.backend.body_orientation(PELVIS)
    for env_id, length in ((3, 0.69), (4, 0.71)):
        # The error that is judged is twice the sine of half the angle.
        orientation[env_id] = multiply(turned_about_x(math.degrees(2 * math.asin(length / 2))), orientation[env_id])
    assert judged(env).lost.tolist() == [False, True, True, False, True]


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


def test_a_hand_made_trot_takes_it_along():
    env, _ = begin(STILL)
    for index in range(150):
        env.step(trot(index))
    forward, sideways, height = env.backend.qpos[0, :3].tolist()
    assert forward < -0.8
    assert abs(sideways) < 0.5
    assert height > 0.25


def test_a_trunk_on_the_floor_is_lost():
    env, _ = begin(STILL)
    folded = torch.tensor([[0.0, 4.0, -4.0] * 4])
    steps = [env.step(folded) for _ in range(100)]
    assert any(step.terminated and not solved(step) for step in steps)


def test_a_push_after_it_has_settled_costs_the_episode_and_one_before_does_not():
    env, _ = begin(STILL, STILL)
    env.backend.qvel[0, 0] = 0.8
    settled, steps = round(SETTLING_S / env.control_dt), []
    for number in range(env.max_episode_length):
        if number == 300:
            env.backend.qvel[1, 5] = 8.0
        steps.append(env.step(torch.zeros(2, 12)))
    assert solved(steps[-1]).tolist() == [True, False]
    assert steps[-1].truncated.tolist() == [False, True]
    assert steps[settled - 1].metrics["worst_speed_error_m_s"].tolist() == [0, 0]
    unknown = [steps[index].metrics["mean_speed_error_m_s"].isnan().all() for index in (settled - 1, settled)]
    assert unknown == [True, False]
    before, after = (step.metrics["worst_turn_error_rad_s"][1] for step in (steps[299], steps[-1]))
    assert before < 0.05
    assert after > 0.3


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


YAW = 0.5


def test_only_the_way_straight_ahead_counts_and_only_when_the_time_is_up():
    env = walkers([0.8] * 3, yaw=YAW)
    root = env.backend.joint_position(ROOT)
    for env_id, (distance_m, direction) in enumerate(((8.0, YAW), (8.0, YAW + math.pi / 2), (0.0, YAW))):
        root[env_id, :2] = distance_m * torch.tensor([math.cos(direction), math.sin(direction)])
    assert not solved(env.step(torch.zeros(3, 21))).any()
    env._length[:] = env.max_episode_length - 1
    env.task.memory()["_length"][:] = env.max_episode_length - 1
    step = env.step(torch.zeros(3, 21))
    assert solved(step).tolist() == [True, False, False]
    assert step.truncated.tolist() == [False, True, True]
    assert step.metrics["distance_m"].tolist() == pytest.approx([8.0, 0.0, 0.0], abs=0.05)


def test_the_reward_is_best_at_the_asked_speed():
    env = walkers([0.8] * 3, yaw=YAW)
    env.step(torch.zeros(3, 21))
    for env_id, speed in enumerate((0.0, 0.4, 0.8)):
        env.backend.joint_velocity(ROOT)[env_id, :2] = speed * torch.tensor([math.cos(YAW), math.sin(YAW)])
    rewards = judged(env).reward.tolist()
    assert rewards == sorted(rewards)
    assert rewards[0] < rewards[-1]


def test_it_observes_where_it_looks_from_where_it_began():
    env = walkers([0.8], yaw=YAW)
    half = (YAW + 0.3) / 2
    env.backend.joint_position(ROOT)[0, 3:7] = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])
    observed = env.step(torch.zeros(1, 21)).observation["policy"]["heading_error"][0]
    assert observed.tolist() == pytest.approx([math.cos(0.3), math.sin(0.3)], abs=0.01)


@pytest.mark.parametrize(("name", "period_steps"), [("velocity_go1", 20), ("walk_humanoid", 40)])
def test_the_clock_goes_round_in_the_gaits_period_and_starts_anew_with_an_episode(name, period_steps):
    env = begin((0.5, 0.0, 0.0))[0] if name == "velocity_go1" else walkers([0.8])
    still = torch.zeros(env.action_space.shape)
    hands = [env.step(still).observation["policy"]["gait_clock"][0].tolist() for _ in range(period_steps + 1)]
    assert hands[period_steps // 4 - 1] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert hands[period_steps // 2 - 1] == pytest.approx([-1.0, 0.0], abs=1e-6)
    assert hands[period_steps - 1] == pytest.approx([1.0, 0.0], abs=1e-6)
    again = env.reset(torch.tensor([0]), [env.draw_conditions(episode(1).conditions_generator())])
    assert again["policy"]["gait_clock"][0].tolist() == [1.0, 0.0]


def test_falling_loses():
    env = walkers([0.8, 0.8])
    root = env.backend.joint_position(ROOT)
    root[0, 2] = LOWEST_M - 0.1
    root[1, 3:7] = torch.tensor([math.cos(0.6), 0.0, math.sin(0.6), 0.0])
    step = env.step(torch.zeros(2, 21))
    assert step.terminated.tolist() == [True, True]
    assert not solved(step).any()
