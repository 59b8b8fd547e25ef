"""A humanoid that tracks motions."""

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.tasks.track_motion import (
    COLUMNS_OF_THE_ROOT,
    ReferenceMotion,
    TrackMotion,
    read_motion,
)
from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, JOINTS, KEYPOINTS, PELVIS, ROOT, STANDING_HEIGHT_M
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import number
from isaaclab_arena.sim.scene import ASSETS, ScenePart, compose_scene
from tests.environments.building import build_on_the_floor, episode, refusal, start, steps_of


@pytest.fixture(scope="module")
def humanoid() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ASSETS / HUMANOID.asset))


def test_it_has_the_mass_and_the_joints_of_a_small_person(humanoid):
    assert 40 < humanoid.body_subtreemass[1] < 50
    assert humanoid.nu == len(HUMANOID.joints) == 21
    actuated = {humanoid.joint(int(joint)).name for joint in humanoid.actuator_trnid[:, 0]}
    assert actuated == {name.removeprefix("robot/") for name in HUMANOID.joints}


def test_left_and_right_are_mirrored(humanoid):
    names = [name.removeprefix("robot/") for name in HUMANOID.joints]
    for left in (name for name in names if name.startswith("left_")):
        right = left.replace("left_", "right_")
        low, high = humanoid.joint(left).range
        flip = left.endswith(("roll", "yaw"))
        assert tuple(humanoid.joint(right).range) == ((-high, -low) if flip else (low, high))
        assert (humanoid.actuator(left).forcerange == humanoid.actuator(right).forcerange).all()


def test_the_default_posture_is_within_the_limits_and_so_is_what_actions_ask_of_the_legs(humanoid):
    settings = zip(HUMANOID.joints, HUMANOID.default_joint_position, HUMANOID.action_scale, strict=True)
    for name, default, scale in settings:
        low, high = humanoid.joint(name.removeprefix("robot/")).range
        assert low <= default <= high
        assert scale < high - low


def test_it_stands_by_itself_for_as_long_as_it_is_left_alone():
    env = build_on_the_floor("walk_humanoid", num_envs=2)
    start(env)
    assert not any(step.terminated.any() for step in steps_of(env, torch.zeros(2, 21), 200))
    height = env.backend.body_position(PELVIS)[:, 2]
    assert ((height - STANDING_HEIGHT_M).abs() < 0.02).all()


def test_it_touches_only_the_floor():
    model = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=HUMANOID.asset),))
    assert [model.geom(int(geom)).name for geom in np.flatnonzero(model.geom_contype)] == ["floor"]


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


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path)
    (problem,) = caught.value.problems
    assert problem.key == "motion_file"
    return problem.message


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


def test_keypoints_are_where_the_pose_has_them(tmp_path):
    motion = read(write(tmp_path / "motion.csv", [frame(0.0), frame(0.02, root_y=0.3)]))
    left_foot, right_foot = motion.keypoints[0, 3:]
    assert left_foot[1] == pytest.approx(0.095)
    assert right_foot[1] == pytest.approx(-0.095)
    assert left_foot[2] == pytest.approx(0.0, abs=1e-3)
    assert motion.keypoints[1] - motion.keypoints[0] == pytest.approx(np.tile([0.0, 0.3, 0.0], (len(KEYPOINTS), 1)))


def test_a_raised_arm_is_level_and_a_turn_and_a_bend_have_their_velocities(tmp_path):
    turns = (0.0, 0.1, 0.2)
    frames = [
        frame(turn, root_qw=math.cos(turn / 2), root_qz=math.sin(turn / 2), left_knee=turn, left_elbow=0.0)
        | {"left_shoulder_pitch": 0.0, "left_shoulder_roll": math.pi / 2}
        for turn in turns
    ]
    motion = read(write(tmp_path / "motion.csv", frames), frame_dt=0.1)
    assert motion.keypoints[0, 1] == pytest.approx([0.0, 0.20 + 0.515, 0.8167 + 0.42])
    assert motion.root_velocity == pytest.approx(np.tile([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], (3, 1)))
    assert motion.joint_velocity[:, JOINTS.index("left_knee")] == pytest.approx(np.ones(3))


ANOTHER_ROBOTS = tuple(name.replace("left_knee", "left_kne") for name in COLUMNS)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([], "0 frames"),
        ([frame(0.0)], "1 frames"),
        ([frame(0.1), frame(0.1)], "not later"),
        ([frame(0.0), frame(700.0)], "700 s"),
        ([frame(0.0), frame(0.1, root_qw=0.5)], "no unit quaternion"),
        ([frame(0.0), frame(0.1, root_x=float("nan"))], "not finite"),
        ([frame(0.0), frame(0.1, left_knee=3.0)], "left_knee to 3.00 rad at 0.10 s"),
    ],
)
def test_what_is_no_motion_is_refused_with_the_reason(tmp_path, frames, complaint):
    assert complaint in refused(write(tmp_path / "motion.csv", frames))


def test_a_motion_of_another_robot_is_refused_with_the_missing_joint_and_a_suggestion(tmp_path):
    frames = [{**frame(time), "left_kne": 0.5} for time in (0.0, 0.1)]
    message = refused(write(tmp_path / "motion.csv", frames, ANOTHER_ROBOTS))
    assert "left_knee" in message
    assert "'left_kne'" in message


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", None])
def test_a_file_without_a_table_and_no_file_are_refused_by_name(tmp_path, content):
    path = tmp_path / "motion.csv"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refused(path)


def test_a_line_that_is_cut_short_is_refused_with_its_number(tmp_path):
    path = write(tmp_path / "motion.csv", [frame(0.0), frame(0.1)])
    path.write_text(path.read_text().rstrip()[:-60])
    assert "line 3" in refused(path)


NOTHING = torch.zeros(1, len(JOINTS))


def motion_of(env: FloorEnvironment) -> TrackMotion:
    assert isinstance(env.task, TrackMotion)
    return env.task


def started(begin_s: float = 0.0, **options) -> FloorEnvironment:
    env = build_on_the_floor("track_motion", **options)
    conditions = {"motion.start_s": begin_s, "robot.joint_offset": (0.0,) * len(JOINTS)}
    env.reset(torch.tensor([0]), [conditions])
    return env


def drawn_start(env: FloorEnvironment, index: int) -> float:
    return number(env.draw_conditions(episode(index).conditions_generator())["motion.start_s"])


def test_holding_the_joints_of_the_motion_is_not_enough_to_follow_it():
    env = started()
    steps = [env.step(NOTHING) for _ in range(env.max_episode_length)]
    assert any(step.terminated for step in steps)
    assert not any(step.success for step in steps)


@pytest.mark.parametrize(("aside_m", "succeeds"), [(0.0, True), (0.15, False)])
def test_an_episode_that_begins_late_ends_with_the_motion_and_is_lost_if_it_misses_it(aside_m, succeeds):
    env = started(5.9)
    env.backend.joint_position(ROOT)[0, 1] += aside_m
    steps = [env.step(NOTHING) for _ in range(5)]
    assert [bool(step.terminated) for step in steps] == [False] * 4 + [True]
    assert bool(steps[-1].success) is succeeds


def test_episodes_begin_with_the_motion_unless_they_may_begin_anywhere_and_in_the_same_postures():
    env, anywhere = build_on_the_floor("track_motion"), build_on_the_floor("track_motion", start="anywhere")
    assert {drawn_start(env, index) for index in range(20)} == {0.0}
    draws = {drawn_start(anywhere, index) for index in range(20)}
    assert len(draws) > 10
    assert max(draws) < 6.0
    first, second = (each.draw_conditions(episode(3).conditions_generator()) for each in (env, anywhere))
    assert first["robot.joint_offset"] == second["robot.joint_offset"]


def test_a_zero_action_asks_for_the_motion_s_next_frame_and_the_last_action_is_read_back():
    env = started(1.0)
    action = torch.linspace(-0.5, 0.5, len(JOINTS))[None]
    observation = env.step(action).observation
    controls = torch.stack([env.backend.ctrl[0, env.backend.names.actuators[name]] for name in HUMANOID.actuators])
    target = motion_of(env)._motion.joint_position[51]
    scale = torch.tensor(HUMANOID.action_scale).double()
    assert controls.tolist() == pytest.approx((torch.from_numpy(target) + scale * action[0]).tolist())
    assert observation["policy"]["last_action"][0].tolist() == pytest.approx(action[0].tolist(), abs=1e-5)


def test_it_observes_where_the_motion_will_be_next():
    env = build_on_the_floor("track_motion")
    conditions = {"motion.start_s": 1.0, "robot.joint_offset": (0.0,) * len(JOINTS)}
    policy = env.reset(torch.tensor([0]), [conditions])["policy"]
    assert policy["motion_phase"][0].item() == pytest.approx(1 / 6, abs=1e-3)
    reference = motion_of(env)._motion
    wanted = reference.joint_position[51] - HUMANOID.default_joint_position
    assert policy["reference_joint_pos"][0].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    way = reference.root_position[51] - reference.root_position[50]
    assert policy["reference_root_pos"][0].tolist() == pytest.approx(way.tolist(), abs=1e-4)
    assert policy["reference_root_rot"][0].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("options", [{"start": "begining"}, {"motion_file": "nowhere.csv"}])
def test_an_unknown_start_and_a_missing_motion_are_refused(options):
    (problem,) = refusal("track_motion", **options).problems
    assert {problem.key} == set(options)


def test_env_slots_start_at_their_own_place_in_the_motion():
    env = build_on_the_floor("track_motion", num_envs=3, start="anywhere")
    start(env)
    begins = [drawn_start(env, env_id) for env_id in range(3)]
    phases = env.step(torch.zeros(3, len(JOINTS))).observation["policy"]["motion_phase"][:, 0]
    assert phases.tolist() == pytest.approx([(begin + 0.02) / 6 for begin in begins], abs=1e-5)
