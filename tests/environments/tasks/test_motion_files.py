"""Files of motions that a humanoid is to track."""

import math
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.environments.tasks.track_motion import (
    COLUMNS_OF_THE_ROOT,
    ReferenceMotion,
    read_motion,
)
from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, JOINTS, KEYPOINTS
from isaaclab_arena.errors import ConfigError

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
