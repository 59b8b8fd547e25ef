"""Reference motions: a robot's pose over time, read from a table of numbers."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.sim.scene.floor_robot import FloorRobot
from isaaclab_arena.sim.scene.poses import FloorRobotPoses

KEY = "motion_file"
COLUMNS_OF_THE_ROOT = ("root_x", "root_y", "root_z", "root_qw", "root_qx", "root_qy", "root_qz")

_TIME = "time_s"
_UNIT_TOLERANCE = 0.01
_LIMIT_TOLERANCE_RAD = 0.02
_LONGEST_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ReferenceMotion:
    """A motion at a control rate, one frame per control step.

    Legend: f frames, k joints, p keypoints.

    Attributes:
        root_position: In the world [m]. Shape: (f, 3).
        root_orientation: Unit quaternions, w x y z. Shape: (f, 4).
        root_velocity: Linear in the world [m/s], then angular in its own frame [rad/s]. Shape: (f, 6).
        joint_position: In the robot's order [rad]. Shape: (f, k).
        joint_velocity: Likewise [rad/s]. Shape: (f, k).
        keypoints: Where sites of the robot are [m]. Shape: (f, p, 3).
    """

    root_position: np.ndarray
    root_orientation: np.ndarray
    root_velocity: np.ndarray
    joint_position: np.ndarray
    joint_velocity: np.ndarray
    keypoints: np.ndarray

    @property
    def num_frames(self) -> int:
        """How many frames it has."""
        return len(self.root_position)


def read_motion(path: Path, robot: FloorRobot, keypoints: Sequence[str], frame_dt: float) -> ReferenceMotion:
    """Return the motion of a file.

    The file is a table with a line of names, separated by commas: ``time_s``, the root's place ``root_x`` to
    ``root_z`` [m] and orientation ``root_qw`` to ``root_qz``, and every joint of the robot, in any order [rad].

    Args:
        path: The file.
        robot: Whose motion it is.
        keypoints: Sites whose places are wanted.
        frame_dt: Time between two frames; frames between those of the file are interpolated [s].

    Raises:
        ConfigError: If the file cannot be read or is not a motion of this robot, with ``key`` set to its option.
    """
    joints = tuple(name.rpartition("/")[2] for name in robot.joints)
    table = _table(path, (_TIME, *COLUMNS_OF_THE_ROOT, *joints))
    poses = FloorRobotPoses(robot)
    _check(table, poses, joints, path)
    table = _resampled(table, frame_dt)
    root, joint_position = table[:, 1:8], table[:, 8:]
    positions = np.array([poses.positions(*pose) for pose in zip(root, joint_position, strict=True)])
    velocities = poses.velocities(positions, frame_dt)
    return ReferenceMotion(
        root_position=root[:, :3],
        root_orientation=root[:, 3:],
        root_velocity=velocities[:, poses.root_dofs],
        joint_position=joint_position,
        joint_velocity=velocities[:, poses.joint_dofs],
        keypoints=poses.site_positions(positions, keypoints),
    )


def _table(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    """Return the columns of a file in the order asked for. Shape: (num_lines, len(columns))."""
    wrong = not_a_plain_file(path)
    if wrong is not None:
        raise ConfigError(Problem(f"'{path}': {wrong}", key=KEY))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names, *lines = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _problem(path, f"cannot be read: {error}") from error
    names = [name.strip() for name in names]
    missing = [name for name in columns if name not in names]
    if missing:
        raise _problem(path, f"has no column {', '.join(missing)}{did_you_mean(missing[0], names)}")
    where = [names.index(name) for name in columns]
    return np.array([_numbers(path, number, line, where) for number, line in enumerate(lines, start=2) if line])


def _numbers(path: Path, number: int, line: Sequence[str], where: Sequence[int]) -> list[float]:
    try:
        values = [float(line[column]) for column in where]
    except (ValueError, IndexError) as error:
        raise _problem(path, f"line {number} is not a line of numbers: {error}") from error
    if not all(math.isfinite(value) for value in values):
        raise _problem(path, f"line {number} has a number that is not finite")
    return values


def _check(table: np.ndarray, poses: FloorRobotPoses, joints: Sequence[str], path: Path) -> None:
    if len(table) < 2:
        raise _problem(path, f"has {len(table)} frames; a motion has at least two")
    times = table[:, 0]
    if not (np.diff(times) > 0).all():
        raise _problem(path, "has frames whose time_s is not later than that of the frame before")
    if times[-1] - times[0] > _LONGEST_S:
        raise _problem(path, f"lasts {times[-1] - times[0]:.0f} s; at most {_LONGEST_S:.0f} s are allowed")
    lengths = np.linalg.norm(table[:, 4:8], axis=1)
    if np.abs(lengths - 1).max() > _UNIT_TOLERANCE:
        raise _problem(path, "has a frame whose root_qw, root_qx, root_qy, root_qz is no unit quaternion")
    low, high = poses.joint_limits()
    beyond = np.maximum(low - table[:, 8:], table[:, 8:] - high)
    frame, joint = divmod(int(beyond.argmax()), len(joints))
    if beyond[frame, joint] > _LIMIT_TOLERANCE_RAD:
        span = f"{low[joint]:.2f} to {high[joint]:.2f} rad"
        value, at = table[frame, 8 + joint], times[frame]
        raise _problem(path, f"bends {joints[joint]} to {value:.2f} rad at {at:.2f} s, but it goes from {span}")


def _resampled(table: np.ndarray, frame_dt: float) -> np.ndarray:
    times = table[:, 0] - table[0, 0]
    # The last frame stays the last even where the file's times are rounded.
    num_frames = math.floor(times[-1] / frame_dt + 1e-6) + 1
    wanted = np.arange(num_frames) * frame_dt
    values = table.copy()
    flips = np.cumprod(np.where((values[1:, 4:8] * values[:-1, 4:8]).sum(axis=1) < 0, -1.0, 1.0))
    values[1:, 4:8] *= flips[:, None]
    new = np.stack([wanted, *(np.interp(wanted, times, column) for column in values[:, 1:].T)], axis=1)
    new[:, 4:8] /= np.linalg.norm(new[:, 4:8], axis=1, keepdims=True)
    return new


def _problem(path: Path, message: str) -> ConfigError:
    return ConfigError(Problem(f"'{path}' {message}", key=KEY))
