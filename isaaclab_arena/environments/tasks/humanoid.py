"""The humanoid and its reference motions."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
import torch

from isaaclab_arena.environments.mdp.locomotion_terms import mean_square
from isaaclab_arena.environments.mdp.spaces import ObservationTerm, sense_terms, vector_term
from isaaclab_arena.environments.mdp.task import FloorTask
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.math import rotate
from isaaclab_arena.sim.scene import CameraPose, FloorRobot, ScenePart, compose_scene

# Define the humanoid: its names, its posture, and the terms that tasks share. All shapes begin with (num_envs, ...).

STANDING_HEIGHT_M = 0.812
PELVIS, ROOT = "robot/pelvis", "robot/root"
FEET = ("robot/left_foot", "robot/right_foot")
KEYPOINTS = ("robot/head", "robot/left_hand", "robot/right_hand", *FEET)

# Joint, position in the default posture [rad], and target offset per unit of action [rad].
_WAIST = (("waist_yaw", 0.0, 0.3), ("waist_roll", 0.0, 0.2), ("waist_pitch", 0.0, 0.3))
_LEG = (
    ("hip_yaw", 0.0, 0.3),
    ("hip_roll", 0.0, 0.3),
    ("hip_pitch", -0.22, 0.6),
    ("knee", 0.50, 0.6),
    ("ankle_pitch", -0.28, 0.5),
    ("ankle_roll", 0.0, 0.3),
)
_ARM = (("shoulder_pitch", 0.10, 0.5), ("shoulder_roll", 0.12, 0.4), ("elbow", -0.40, 0.5))


def _side(side: str, joints: tuple[tuple[str, float, float], ...]) -> tuple[tuple[str, float, float], ...]:
    mirrored = -1.0 if side == "right" else 1.0
    return tuple(
        (f"{side}_{name}", default * (mirrored if name.endswith(("roll", "yaw")) else 1.0), scale)
        for name, default, scale in joints
    )


_JOINTS = (*_WAIST, *_side("left", _LEG), *_side("right", _LEG), *_side("left", _ARM), *_side("right", _ARM))
_NAMES = tuple(f"robot/{name}" for name, _, _ in _JOINTS)
JOINTS = tuple(name for name, _, _ in _JOINTS)
_DEFAULT = tuple(default for _, default, _ in _JOINTS)

HUMANOID = FloorRobot(
    name="humanoid",
    asset="robots/humanoid.xml",
    root_body=PELVIS,
    free_joint=ROOT,
    joints=_NAMES,
    default_joint_position=_DEFAULT,
    actuators=_NAMES,
    default_control=_DEFAULT,
    action_scale=tuple(scale for _, _, scale in _JOINTS),
    action_bound=1.0,
    viewport=CameraPose("viewport", (2.3, -2.6, 1.5), (0.0, 0.0, 0.75), fovy_deg=38.0, follows=PELVIS),
)


class HumanoidTask(FloorTask):
    """A task of the humanoid, which stores the previous action, for rewards of smooth motion."""

    robot = HUMANOID
    control_dt = 0.02
    cleared = (*FloorTask.cleared, "previous_action")

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self.previous_action = backend.ctrl.new_zeros(backend.num_envs, len(HUMANOID.joints))

    def observation_terms(self) -> dict[str, ObservationTerm]:
        last_action = vector_term(JOINTS, "", self.last_action)
        return {**sense_terms(HUMANOID, lambda: self.senses), "last_action": last_action}

    def last_action(self, backend: Backend) -> torch.Tensor:
        """Return the action that gave the current controls. Shape: (num_envs, num_joints)."""
        return self.actions.last(backend)

    def jerkiness(self, backend: Backend, running: torch.Tensor) -> torch.Tensor:
        """Return the mean squared change between the last two actions; call it once per step. Shape: (num_envs,)."""
        action = self.last_action(backend)
        change = action - self.previous_action
        # Env slots outside ``running`` made no step and keep their action.
        self.previous_action = torch.where(running[:, None], action, self.previous_action)
        return mean_square(change)


def heading(backend: NamedState) -> torch.Tensor:
    """Return the pelvis' horizontal forward direction, a unit vector. Shape: (num_envs, 2)."""
    orientation = backend.body_orientation(PELVIS)
    ahead = torch.zeros_like(orientation[:, :3])
    ahead[:, 0].fill_(1.0)
    x, y, _ = rotate(orientation, ahead).unbind(-1)
    length = torch.sqrt(x * x + y * y).clamp(min=1e-6)
    return torch.stack((x / length, y / length), dim=-1)


# Read reference motions: a robot's pose over time, from a table of numbers.

KEY = "motion_file"
COLUMNS_OF_THE_ROOT = ("root_x", "root_y", "root_z", "root_qw", "root_qx", "root_qy", "root_qz")

_TIME = "time_s"
_UNIT_TOLERANCE = 0.01
_LIMIT_TOLERANCE_RAD = 0.02
_LONGEST_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ReferenceMotion:
    """A motion with one frame per control step: f frames, k joints, p keypoints."""

    root_position: np.ndarray  # in the world [m], (f, 3)
    root_orientation: np.ndarray  # unit quaternions, w x y z, (f, 4)
    root_velocity: np.ndarray  # linear in the world [m/s], then angular in its own frame [rad/s], (f, 6)
    joint_position: np.ndarray  # in the robot's order [rad], (f, k)
    joint_velocity: np.ndarray  # in the robot's order [rad/s], (f, k)
    keypoints: np.ndarray  # positions of the robot's sites [m], (f, p, 3)


def read_motion(path: Path, robot: FloorRobot, keypoints: Sequence[str], frame_dt: float) -> ReferenceMotion:
    """Return the motion of a file, resampled to ``frame_dt`` [s]; ConfigError if it is not one of this robot."""
    # The file is a CSV table with a header: ``time_s``, the root's ``root_x`` to ``root_z`` [m] and ``root_qw`` to
    # ``root_qz``, and every joint of the robot [rad], in any order.
    names = tuple(name.rpartition("/")[2] for name in robot.joints)
    table = _table(path, (_TIME, *COLUMNS_OF_THE_ROOT, *names))
    model = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=robot.asset),))
    root, joints = model.joint(robot.free_joint), [model.joint(name) for name in robot.joints]
    low, high = np.array([joint.range for joint in joints]).T
    # Only the largest violation of a joint limit is reported.
    beyond = np.maximum(low - table[:, 8:], table[:, 8:] - high)
    frame, joint = divmod(int(beyond.argmax()), len(joints))
    if beyond[frame, joint] > _LIMIT_TOLERANCE_RAD:
        span = f"{low[joint]:.2f} to {high[joint]:.2f} rad"
        value, at = table[frame, 8 + joint], table[frame, 0]
        raise _problem(path, f"bends {names[joint]} to {value:.2f} rad at {at:.2f} s, but it goes from {span}")

    # Each control step gets a frame. The tolerance keeps the last one if the file's times are rounded.
    times = table[:, 0] - table[0, 0]
    wanted = np.arange(math.floor(times[-1] / frame_dt + 1e-6) + 1) * frame_dt
    values = table.copy()
    # Neighbouring quaternions need the same sign for interpolation.
    flips = np.cumprod(np.where((values[1:, 4:8] * values[:-1, 4:8]).sum(axis=1) < 0, -1.0, 1.0))
    values[1:, 4:8] *= flips[:, None]
    frames = np.stack([wanted, *(np.interp(wanted, times, column) for column in values[:, 1:].T)], axis=1)
    frames[:, 4:8] /= np.linalg.norm(frames[:, 4:8], axis=1, keepdims=True)

    # Velocities are central differences of poses, and keypoints follow by forward kinematics.
    positions = np.tile(model.qpos0, (len(frames), 1))
    positions[:, int(root.qposadr[0]) + np.arange(7)] = frames[:, 1:8]
    positions[:, [int(joint.qposadr[0]) for joint in joints]] = frames[:, 8:]
    velocities, places = np.zeros((len(frames), model.nv)), []
    data, sites = mujoco.MjData(model), [model.site(name).id for name in keypoints]
    for index, (pose, velocity) in enumerate(zip(positions, velocities, strict=True)):
        before, after = max(index - 1, 0), min(index + 1, len(frames) - 1)
        mujoco.mj_differentiatePos(model, velocity, (after - before) * frame_dt, positions[before], positions[after])
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        places.append(data.site_xpos[sites].copy())
    return ReferenceMotion(
        root_position=frames[:, 1:4],
        root_orientation=frames[:, 4:8],
        root_velocity=velocities[:, int(root.dofadr[0]) + np.arange(6)],
        joint_position=frames[:, 8:],
        joint_velocity=velocities[:, [int(joint.dofadr[0]) for joint in joints]],
        keypoints=np.array(places),
    )


def _table(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    """Return the columns of a file in the given order, checked as frames. Shape: (num_frames, len(columns))."""
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
    where, table = [names.index(name) for name in columns], []
    for number, line in ((number, line) for number, line in enumerate(lines, start=2) if line):
        try:
            table.append([float(line[column]) for column in where])
        except (ValueError, IndexError) as error:
            raise _problem(path, f"line {number} is not a line of numbers: {error}") from error
        if not all(map(math.isfinite, table[-1])):
            raise _problem(path, f"line {number} has a number that is not finite")
    if len(table) < 2:
        raise _problem(path, f"has {len(table)} frames; a motion has at least two")

    frames = np.array(table)
    times, lengths = frames[:, 0], np.linalg.norm(frames[:, 4:8], axis=1)
    if not (np.diff(times) > 0).all():
        raise _problem(path, "has frames whose time_s is not later than that of the frame before")
    if times[-1] - times[0] > _LONGEST_S:
        raise _problem(path, f"lasts {times[-1] - times[0]:.0f} s; at most {_LONGEST_S:.0f} s are allowed")
    if np.abs(lengths - 1).max() > _UNIT_TOLERANCE:
        raise _problem(path, "has a frame whose root_qw, root_qx, root_qy, root_qz is no unit quaternion")
    return frames


def _problem(path: Path, message: str) -> ConfigError:
    return ConfigError(Problem(f"'{path}' {message}", key=KEY))
