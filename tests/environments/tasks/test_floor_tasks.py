"""When tasks of robots on a floor are solved and lost, in numbers that are written here and not imported."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.tasks.track_motion import (
    COLUMNS_OF_THE_ROOT,
    ReferenceMotion,
    TrackMotion,
    read_motion,
)
from isaaclab_arena.environments.tasks.velocity_go1 import COMMAND, GO1, STANDING_SHARE
from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, JOINTS, KEYPOINTS, ROOT, STANDING_HEIGHT_M
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import number
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import multiply
from tests.environments.building import build_on_the_floor, episode, play, refusal, solved, steps_of

# Observations are held by the success of trained policies, in `tests/evaluation/rollout/test_events.py`.

LITTLE = 1e-3
PELVIS = "robot/pelvis"


def judged(env: FloorEnvironment) -> Verdict:
    return env.task.judge(env.backend, torch.ones(env.num_envs, dtype=torch.bool))


def turned_about_x(degrees: float) -> torch.Tensor:
    half = math.radians(degrees) / 2
    return torch.tensor([math.cos(half), math.sin(half), 0.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cartpole", {"start": "uprigth"}),
        ("track_motion", {"start": "begining"}),
        ("track_motion", {"motion_file": "nowhere.csv"}),
    ],
)
def test_an_unknown_start_and_a_missing_motion_are_refused(name, options):
    (problem,) = refusal(name, **options).problems
    assert {problem.key} == set(options)
    assert ("did you mean" in problem.message) == ("start" in options)


# A cart that balances a pole.

SLIDER, HINGE = "robot/slider", "robot/hinge"


def cart(angle: float, *, position: float = 0.0, **options) -> FloorEnvironment:
    env = build_on_the_floor("cartpole", **options)
    at_rest = {"cart.velocity": 0.0, "pole.angular_velocity": 0.0}
    env.reset(torch.tensor([0]), [{"cart.position": position, "pole.angle": angle, **at_rest}])
    return env


def balance(env: FloorEnvironment, num_steps: int) -> list[Step]:
    """Hold the pole up by a linear feedback of cart and pole."""
    steps = []
    for _ in range(num_steps):
        x, angle = (env.backend.joint_position(joint)[:, 0] for joint in (SLIDER, HINGE))
        speed, rate = (env.backend.joint_velocity(joint)[:, 0] for joint in (SLIDER, HINGE))
        force = 1.0 * x + 2.4 * speed + 30.0 * angle + 8.0 * rate
        steps.append(env.step((force / 20.0)[:, None].float()))
    return steps


def put_pole(env: FloorEnvironment, angle: float) -> None:
    env.backend.qpos[0], env.backend.qvel[0] = 0.0, 0.0
    env.backend.qpos[0, env.backend.names.joint_qpos[HINGE]] = angle


def test_a_pole_that_is_balanced_all_the_time_counts_when_the_time_is_up_and_one_that_leaned_once_does_not():
    env, leaned = cart(0.1, position=0.2), cart(0.0)
    steps = balance(env, env.max_episode_length)
    assert [bool(solved(step)) for step in steps] == [False] * 499 + [True]
    assert steps[-1].terminated
    assert steps[-1].metrics["upright_s"].item() == pytest.approx(10.0)
    balance(leaned, 100)
    put_pole(leaned, 0.25)
    steps = balance(leaned, 400)
    assert not any(step.terminated for step in steps)
    assert steps[-1].truncated


@pytest.mark.parametrize(("start", "angle"), [("upright", 0.0), ("hanging", math.pi)])
def test_a_cart_off_its_rail_is_lost(start, angle):
    steps = steps_of(cart(angle, position=0.9, start=start), torch.ones(1, 1), 20)
    assert any(step.terminated and not solved(step) for step in steps)


def test_a_pole_that_hung_has_to_stand_for_the_last_two_seconds():
    for moment, succeeds in ((395, True), (405, False)):
        env = cart(math.pi, start="hanging")
        assert not any(step.terminated for step in steps_of(env, torch.zeros(1, 1), moment))
        put_pole(env, 0.0)
        assert bool(solved(balance(env, 500 - moment)[-1])) is succeeds
    records = play(build_on_the_floor("cartpole", num_envs=3, start="hanging"), ZeroActionPolicy(), 3).records
    assert [record.outcome for record in records.values()] == ["timeout"] * 3


def test_the_reward_is_highest_for_a_pole_that_stands_still_in_the_middle_and_an_action_is_a_share_of_the_force():
    rewards = [cart(angle, position=x).step(torch.zeros(1, 1)).reward for angle, x in ((0, 0), (0.7, 0), (0, 0.8))]
    assert rewards[0].item() == pytest.approx(0.02, rel=1e-3)
    assert max(rewards[1:]) < 0.95 * rewards[0]
    env = cart(math.pi, start="hanging")
    for share, force in ((0.5, 10.0), (7.0, 20.0)):
        env.step(torch.tensor([[share]]))
        assert env.backend.ctrl.item() == force


# A quadruped that follows velocities.

STILL = (0.0, 0.0, 0.0)


def dogs(*commands: tuple[float, ...]) -> FloorEnvironment:
    """Start one quadruped per command in the default posture."""
    env = build_on_the_floor("velocity_go1", num_envs=len(commands))
    posture = {"robot.joint_position": GO1.default_joint_position, "robot.yaw": 0.0}
    env.reset(torch.arange(len(commands)), [{**posture, COMMAND: command} for command in commands])
    return env


def test_a_robot_moves_as_told_within_a_quarter_of_a_metre_and_three_tenths_of_a_radian_a_second():
    """What it does is the same all the time, so that smoothing it changes nothing once the start has passed."""
    env = dogs(
        (0.25 - LITTLE, 0, 0), (0.25 + LITTLE, 0, 0), (0, -0.25 - LITTLE, 0), (0, 0, 0.3 - LITTLE), (0, 0, -0.301)
    )
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
    env = dogs((1.0, 0.0, 0.0))
    forward = env.backend.names.joint_dof["robot/free"].start
    judgements = []
    for step in range(1, 501):
        speed = 0.0 if step <= moment else 1.0
        env.task.memory()["_velocity"][0, 0] = env.backend.qvel[0, forward] = speed
        judgements.append(judged(env))
    assert bool(judgements[-1].success) is solved


def test_a_robot_is_lost_when_it_tilts_by_sixty_degrees_or_its_trunk_touches_the_floor():
    env = dogs(STILL, STILL)
    for env_id, degrees in ((0, 59.9), (1, 60.1)):
        env.backend.body_orientation("robot/trunk")[env_id] = turned_about_x(degrees)
    assert judged(env).lost.tolist() == [False, True]
    folded = torch.tensor([[0.0, 4.0, -4.0] * 4])
    assert any(step.terminated and not solved(step) for step in steps_of(dogs(STILL), folded, 100))


def test_a_robot_told_to_stand_stands_for_ten_seconds_without_being_told_how():
    env = dogs(STILL)
    steps = steps_of(env, torch.zeros(1, 12), env.max_episode_length)
    assert [bool(solved(step)) for step in steps] == [False] * 499 + [True]
    position = env.backend.qpos[0, :3]
    assert position[:2].norm() < 0.08
    assert 0.29 < position[2] < 0.34
    assert env.backend.qvel.abs().max() < 0.01
    commands = [env.draw_conditions(episode(index).conditions_generator())[COMMAND] for index in range(400)]
    assert np.mean([command == STILL for command in commands]) == pytest.approx(STANDING_SHARE, abs=0.04)


def test_robots_weigh_what_they_weigh_and_touch_nothing_but_the_floor():
    for name, least_kg, most_kg in (("velocity_go1", 12, 13), ("walk_humanoid", 40, 50)):
        backend = build_on_the_floor(name).backend
        assert isinstance(backend, MujocoBackend)
        model = backend.model
        assert least_kg < model.body_mass.sum() < most_kg
        assert [model.geom(int(index)).name for index in np.flatnonzero(model.geom_contype)] == ["floor"]


# A humanoid that walks.


def walkers(*speeds: float, yaw: float = 0.0) -> FloorEnvironment:
    """Return humanoids in their default posture, one for each speed."""
    env = build_on_the_floor("walk_humanoid", num_envs=len(speeds))
    start = {"robot.yaw": yaw, "robot.joint_position": env.robot.default_joint_position}
    env.reset(torch.arange(len(speeds)), [{**start, "command.speed": speed} for speed in speeds])
    return env


@pytest.mark.parametrize("yaw", [0.0, 0.5])
def test_a_humanoid_has_walked_when_it_has_come_seven_tenths_of_the_asked_way_straight_ahead_in_500_steps(yaw):
    env = walkers(0.6, 0.6, 1.0, 1.0, 0.8, 0.8, yaw=yaw)
    position = env.backend.body_position(PELVIS)
    ahead = torch.tensor([4.2 + LITTLE, 4.2 - LITTLE, 7.0 + LITTLE, 7.0 - LITTLE, -8.0, 0.0], dtype=torch.float64)
    aside = torch.tensor([0.0] * 5 + [8.0], dtype=torch.float64)
    position[:, 0] += math.cos(yaw) * ahead - math.sin(yaw) * aside
    position[:, 1] += math.sin(yaw) * ahead + math.cos(yaw) * aside
    for _ in range(498):
        judged(env)
    assert not judged(env).success.any()
    judgement = judged(env)
    assert judgement.success.tolist() == [True, False, True, False, False, False]
    assert judgement.metrics["asked_distance_m"].tolist() == pytest.approx([6.0, 6.0, 10.0, 10.0, 8.0, 8.0])
    assert judgement.metrics["distance_m"].tolist() == pytest.approx(ahead.tolist(), abs=1e-6)


def test_a_humanoid_has_fallen_below_half_a_metre_or_beyond_sixty_degrees():
    env = walkers(*[0.8] * 4)
    env.backend.body_position(PELVIS)[:, 2] = torch.tensor([0.5 + LITTLE, 0.5 - LITTLE, 0.9, 0.9])
    for env_id, degrees in ((2, 59.9), (3, 60.1)):
        env.backend.body_orientation(PELVIS)[env_id] = turned_about_x(degrees)
    assert judged(env).lost.tolist() == [False, True, False, True]


def test_a_humanoid_stands_by_itself_and_its_reward_is_best_at_the_asked_speed():
    env = walkers(*[0.8] * 3, yaw=0.5)
    assert not any(step.terminated.any() for step in steps_of(env, torch.zeros(3, 21), 200))
    assert ((env.backend.body_position(PELVIS)[:, 2] - STANDING_HEIGHT_M).abs() < 0.02).all()
    for env_id, speed in enumerate((0.0, 0.4, 0.8)):
        env.backend.joint_velocity(ROOT)[env_id, :2] = speed * torch.tensor([math.cos(0.5), math.sin(0.5)])
    rewards = judged(env).reward.tolist()
    assert rewards == sorted(set(rewards))


# A humanoid that tracks a motion.


def followers(num_envs: int = 1, begin_s: float = 0.0) -> tuple[FloorEnvironment, TrackMotion]:
    env = build_on_the_floor("track_motion", num_envs=num_envs)
    conditions = {"motion.start_s": begin_s, "robot.joint_offset": (0.0,) * len(JOINTS)}
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


@pytest.mark.parametrize(("begin_s", "aside_m", "succeeds"), [(5.9, 0.0, True), (5.9, 0.15, False), (0.0, 0.0, False)])
def test_an_episode_that_begins_late_ends_with_the_motion_and_holding_its_joints_is_not_enough(
    begin_s, aside_m, succeeds
):
    env, _ = followers(begin_s=begin_s)
    env.backend.joint_position(ROOT)[0, 1] += aside_m
    steps = steps_of(env, torch.zeros(1, len(JOINTS)), 5 if begin_s else 300)
    assert any(step.success for step in steps) is succeeds
    assert any(step.terminated for step in steps)
    assert not begin_s or not any(step.terminated for step in steps[:-1])


def test_episodes_begin_with_the_motion_unless_they_may_begin_anywhere_and_in_the_same_postures():
    env, anywhere = (
        build_on_the_floor("track_motion"),
        build_on_the_floor("track_motion", num_envs=20, start="anywhere"),
    )

    def drawn(each: FloorEnvironment) -> tuple[list[float], Sequence]:
        conditions = [each.draw_conditions(episode(index).conditions_generator()) for index in range(20)]
        return [number(one["motion.start_s"]) for one in conditions], [one["robot.joint_offset"] for one in conditions]

    (begun, postures), (begun_anywhere, same_postures) = drawn(env), drawn(anywhere)
    assert set(begun) == {0.0}
    assert len(set(begun_anywhere)) > 10
    assert max(begun_anywhere) < 6.0
    assert postures == same_postures
    anywhere.reset(torch.arange(20), [anywhere.draw_conditions(episode(i).conditions_generator()) for i in range(20)])
    phases = anywhere.step(torch.zeros(20, len(JOINTS))).observation["policy"]["motion_phase"][:, 0]
    assert phases.tolist() == pytest.approx([(begin + 0.02) / 6 for begin in begun_anywhere], abs=1e-5)


def test_an_action_is_added_to_the_motions_next_frame():
    env, task = followers(begin_s=1.0)
    action = torch.linspace(-0.5, 0.5, len(JOINTS))[None]
    env.step(action)
    controls = torch.stack([env.backend.ctrl[0, env.backend.names.actuators[name]] for name in HUMANOID.actuators])
    scaled = torch.tensor(HUMANOID.action_scale).double() * action[0]
    assert controls.tolist() == pytest.approx((torch.from_numpy(task._motion.joint_position[51]) + scaled).tolist())


COLUMNS = ("time_s", *COLUMNS_OF_THE_ROOT, *JOINTS)
STANDING = dict(zip(JOINTS, HUMANOID.default_joint_position, strict=True))


def frame(time_s: float, **changed: float) -> dict[str, float]:
    """Return a frame in which the humanoid stands, but for what is changed."""
    root = dict(zip(COLUMNS_OF_THE_ROOT, (0.0, 0.0, 0.8167, 1.0, 0.0, 0.0, 0.0), strict=True))
    return {"time_s": time_s, **root, **STANDING, **changed}


def write(path: Path, frames: list[dict[str, float]], columns: tuple[str, ...] = COLUMNS) -> Path:
    lines = [",".join(columns), *(",".join(str(each[name]) for name in columns) for each in frames)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, frame_dt: float = 0.02) -> ReferenceMotion:
    return read_motion(path, HUMANOID, KEYPOINTS, frame_dt)


def test_frames_between_those_of_the_file_are_interpolated(tmp_path):
    path = write(tmp_path / "motion.csv", [frame(0.0, left_elbow=-0.4), frame(0.1, left_elbow=-0.9)])
    motion = read(path)
    assert len(motion.root_position) == 6
    elbow = JOINTS.index("left_elbow")
    assert motion.joint_position[:, elbow] == pytest.approx([-0.4, -0.5, -0.6, -0.7, -0.8, -0.9])
    assert motion.joint_velocity[:, elbow] == pytest.approx([-5.0] * 6)


def test_columns_may_come_in_any_order_and_a_motion_may_begin_at_any_time(tmp_path):
    frames = [frame(3.0), frame(3.5, root_x=0.5)]
    plain = read(write(tmp_path / "plain.csv", frames))
    turned = read(write(tmp_path / "turned.csv", frames, COLUMNS[::-1]))
    assert len(plain.root_position) == 26
    assert (plain.root_position == turned.root_position).all()
    assert plain.root_velocity[:, 0] == pytest.approx([1.0] * 26)


def test_a_quaternion_and_its_negative_are_the_same_turn(tmp_path):
    frames = [frame(0.0), frame(0.1, root_qw=-1.0)]
    motion = read(write(tmp_path / "motion.csv", frames))
    assert motion.root_orientation == pytest.approx(np.tile([1.0, 0.0, 0.0, 0.0], (6, 1)))
    assert motion.root_velocity == pytest.approx(np.zeros((6, 6)))


def test_a_raised_arm_is_level_and_a_turn_and_a_bend_have_their_velocities(tmp_path):
    turns = (0.0, 0.1, 0.2)
    frames = [
        frame(turn, root_qw=math.cos(turn / 2), root_qz=math.sin(turn / 2), left_knee=turn, left_elbow=0.0)
        | {"left_shoulder_pitch": 0.0, "left_shoulder_roll": math.pi / 2}
        for turn in turns
    ]
    motion = read(write(tmp_path / "motion.csv", frames), frame_dt=0.1)
    assert motion.keypoints[0, 1] == pytest.approx([0.0, 0.20 + 0.515, 0.8167 + 0.42])
    assert motion.keypoints[0, 4] == pytest.approx([0.0, -0.095, 0.0], abs=0.06)
    assert motion.root_velocity == pytest.approx(np.tile([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], (3, 1)))
    assert motion.joint_velocity[:, JOINTS.index("left_knee")] == pytest.approx(np.ones(3))


TWO = [frame(0.0), frame(0.1)]
WHOLE = "\n".join(",".join(map(str, line)) for line in (COLUMNS, *(each.values() for each in TWO)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([], "0 frames"),
        ([frame(0.0)], "1 frames"),
        ([frame(0.1), frame(0.1)], "not later"),
        ([frame(0.0), frame(700.0)], "700 s"),
        ([frame(0.0), frame(0.1, root_qw=0.5)], "no unit quaternion"),
        ([frame(0.0), frame(0.1, root_x=float("nan"))], "not finite"),
        ([frame(0.0), frame(0.1, left_knee=3.0)], "left_knee to 3.00 rad at 0.10 s"),
        (WHOLE.replace("left_knee", "left_kne").encode(), "left_knee.*'left_kne'"),
        (WHOLE[:-60].encode(), "line 3"),
        (b"", "motion.csv"),
        (b"\xff\xfe\x00", "motion.csv"),
        (None, "motion.csv"),
    ],
)
def test_what_is_no_motion_is_refused_with_the_reason(tmp_path, content, complaint):
    path = tmp_path / "motion.csv"
    if isinstance(content, list):
        write(path, content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read(path)
    assert [problem.key for problem in caught.value.problems] == ["motion_file"]
