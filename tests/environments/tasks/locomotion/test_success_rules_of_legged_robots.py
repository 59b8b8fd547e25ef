"""When tasks of robots are solved and lost, in the numbers that their descriptions state, written and not imported.

The robots are where a test puts them; no physics is stepped.
"""

import math

import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.tasks.track_motion import TrackMotion
from isaaclab_arena.environments.tasks.walk_humanoid import JOINTS
from isaaclab_arena.sim.math import multiply
from tests.environments.building import build_on_the_floor

LITTLE = 1e-3
PELVIS = "robot/pelvis"


def judged(env: FloorEnvironment) -> Verdict:
    return env.task.judge(env.backend, torch.ones(env.num_envs, dtype=torch.bool))


def turned_about_x(degrees: float) -> torch.Tensor:
    half = math.radians(degrees) / 2
    return torch.tensor([math.cos(half), math.sin(half), 0.0, 0.0], dtype=torch.float64)


def walkers(speeds: list[float]) -> FloorEnvironment:
    """Return humanoids that look along x."""
    env = build_on_the_floor("walk_humanoid", num_envs=len(speeds))
    start = {"robot.yaw": 0.0, "robot.joint_position": env.robot.default_joint_position}
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


def robots(commands: list[tuple[float, float, float]]) -> FloorEnvironment:
    env = build_on_the_floor("velocity_go1", num_envs=len(commands))
    start = {"robot.joint_position": env.robot.default_joint_position, "robot.yaw": 0.0}
    env.reset(torch.arange(len(commands)), [{**start, "command.velocity": command} for command in commands])
    return env


def test_a_robot_moves_as_told_within_a_quarter_of_a_metre_and_three_tenths_of_a_radian_a_second():
    """What it does is the same all the time, so that smoothing it changes nothing once the start has passed."""
    told = [(0.25 - LITTLE, 0, 0), (0.25 + LITTLE, 0, 0), (0, -0.25 - LITTLE, 0), (0, 0, 0.3 - LITTLE), (0, 0, -0.301)]
    env = robots(told)
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
    env = robots([(1.0, 0.0, 0.0)])
    forward = env.backend.names.joint_dof["robot/free"].start
    judgements = []
    for step in range(1, 501):
        speed = 0.0 if step <= moment else 1.0
        env.task.memory()["_velocity"][0, 0] = env.backend.qvel[0, forward] = speed
        judgements.append(judged(env))
    assert bool(judgements[-1].success) is solved


def test_a_robot_is_lost_when_it_tilts_by_sixty_degrees_or_its_trunk_touches_the_floor():
    env = robots([(0, 0, 0)] * 3)
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
