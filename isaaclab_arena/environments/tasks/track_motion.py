"""Follow a reference motion with the whole body."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import mujoco
import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import FloorEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import ViewportOptions
from isaaclab_arena.environments.events import FloorFacts, ever
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import XYZ, ObservationTerm, number_term, site_positions, vector_term
from isaaclab_arena.environments.mdp.task import TaskSpec, Verdict
from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, JOINTS, KEYPOINTS, PELVIS, HumanoidTask
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.episode import Conditions, Metric, draw_uniform, number, point
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.math import dot, norm, rotate_inverse, rotation_error
from isaaclab_arena.sim.scene import ASSETS, FloorRobot, ScenePart, compose_scene

# Read reference motions: a robot's pose over time, from a table of numbers.

KEY = "motion_file"
COLUMNS_OF_THE_ROOT = ("root_x", "root_y", "root_z", "root_qw", "root_qx", "root_qy", "root_qz")

_TIME = "time_s"
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
    for at, line in ((at, line) for at, line in enumerate(lines, start=2) if line):
        try:
            table.append([float(line[column]) for column in where])
        except (ValueError, IndexError) as error:
            raise _problem(path, f"line {at} is not a line of numbers: {error}") from error
        if not all(map(math.isfinite, table[-1])):
            raise _problem(path, f"line {at} has a number that is not finite")
    if len(table) < 2:
        raise _problem(path, f"has {len(table)} frames; a motion has at least two")

    frames = np.array(table)
    times, lengths = frames[:, 0], np.linalg.norm(frames[:, 4:8], axis=1)
    if not (np.diff(times) > 0).all():
        raise _problem(path, "has frames whose time_s is not later than that of the frame before")
    if times[-1] - times[0] > _LONGEST_S:
        raise _problem(path, f"lasts {times[-1] - times[0]:.0f} s; at most {_LONGEST_S:.0f} s are allowed")
    if np.abs(lengths - 1).max() > 0.01:
        raise _problem(path, "has a frame whose root_qw, root_qx, root_qy, root_qz is no unit quaternion")
    return frames


def _problem(path: Path, message: str) -> ConfigError:
    return ConfigError(Problem(f"'{path}' {message}", key=KEY))


# The task: follow the motion.

Start = Literal["beginning", "anywhere"]

LARGEST_KEYPOINT_ERROR_M = 0.08
FARTHEST_HEIGHT_M = 0.2
FARTHEST_TURN_RAD = 0.7

_NOISE_RAD = 0.03


@dataclass(frozen=True, kw_only=True)
class TrackMotionConfig(ViewportOptions):
    """Options of ``track_motion``.

    Attributes:
        motion_file: Table of the motion, relative to the working directory; None for the motion that comes along.
        start: Whether episodes begin with the motion, or anywhere in it, which is how it is learned.
    """

    motion_file: str | None = None
    start: Start = "beginning"


class TrackMotion(HumanoidTask):
    """Solved when the motion has been followed to its end, with the keypoints within 8 cm of its own on average.

    The keypoints are head, hands and feet; the average is over them and over all steps of the episode. Lost when the
    pelvis is more than 20 cm higher or lower than in the motion, or turned away from it by more than 0.7 rad, and when
    an episode that began later than the motion reaches its end without having followed it.
    """

    cleared = (*HumanoidTask.cleared, "_keypoint_errors", "_joint_errors")
    moment_fields = ("qpos", "site_xpos")
    capturable = True

    def __init__(self, config: TrackMotionConfig) -> None:
        if config.start not in get_args(Start):
            message = f"no start called '{config.start}'{did_you_mean(str(config.start), get_args(Start))}"
            raise ConfigError(Problem(message, key="start"))
        path = ASSETS / "motions" / "squat_and_wave.csv" if config.motion_file is None else Path(config.motion_file)
        self._motion = read_motion(path, HUMANOID, KEYPOINTS, self.control_dt)
        self._starts_anywhere = config.start == "anywhere"
        self._last_frame = len(self._motion.root_position) - 1
        duration_s = self._last_frame * self.control_dt
        metrics = (
            Metric(name="mpkpe_m", unit="m", better="lower"),
            Metric(name="joint_error_rad", unit="rad", better="lower"),
        )
        words = "follow the motion"
        super().__init__(TaskSpec(name="track_motion", instruction=words, time_limit_s=duration_s, metrics=metrics))

    def attach(self, backend: Backend) -> None:
        super().attach(backend)

        motion, beside = self._motion, backend.qpos.new_tensor
        self._root_position, self._root_orientation = beside(motion.root_position), beside(motion.root_orientation)
        self._joint_position, self._joint_velocity = beside(motion.joint_position), beside(motion.joint_velocity)
        self._joint_offset = beside(motion.joint_position - np.array(HUMANOID.default_joint_position))
        self._keypoints = beside(motion.keypoints)
        self._frame = torch.zeros_like(self.held_steps)
        self._keypoint_errors = backend.qpos.new_zeros(backend.num_envs)
        self._joint_errors = torch.zeros_like(self._keypoint_errors)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        offset = draw_uniform(generator, (-_NOISE_RAD,) * len(JOINTS), (_NOISE_RAD,) * len(JOINTS))
        (share,) = draw_uniform(generator, (0.0,), (0.9,))  # of the motion, whose last tenth is no start
        frame = int(share * self._last_frame) if self._starts_anywhere else 0
        return {"motion.start_s": round(frame * self.control_dt, 6), "robot.joint_offset": offset}

    def start_state(self, conditions: Conditions) -> StartState:
        motion, frame = self._motion, self._frame_at(conditions)
        root = (*motion.root_position[frame].tolist(), *motion.root_orientation[frame].tolist())
        joints = motion.joint_position[frame] + np.array(point(conditions["robot.joint_offset"]))
        root_velocity, velocities = motion.root_velocity[frame].tolist(), motion.joint_velocity[frame].tolist()
        return StartState(
            joint_positions=HUMANOID.by_joint(root, joints.tolist()),
            joint_velocities=HUMANOID.by_joint(root_velocity, velocities),
            controls=dict(zip(HUMANOID.actuators, motion.joint_position[frame].tolist(), strict=True)),
        )

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        self._frame[env_ids] = self._frame.new_tensor([self._frame_at(each) for each in conditions])

    def centre(self) -> torch.Tensor:
        """Return the joint targets of a zero action: the motion's next frame. Shape: (num_envs, num_joints)."""
        return self._joint_position[self._next_frame()]

    def last_action(self, backend: Backend) -> torch.Tensor:
        """Return the action that gave the current controls. Shape: (num_envs, num_joints)."""
        return self.actions.last(backend, self._joint_position[self._frame])

    def observation_terms(self) -> dict[str, ObservationTerm]:
        return {
            **super().observation_terms(),
            "motion_phase": number_term("share", "1", lambda _: (self._frame / self._last_frame)[:, None]),
            "reference_joint_pos": vector_term(JOINTS, "rad", lambda _: self._joint_offset[self._next_frame()]),
            "reference_joint_vel": vector_term(JOINTS, "rad/s", lambda _: self._joint_velocity[self._next_frame()]),
            # The motion's next root, in the pelvis' frame: the way to it, and the rotation.
            "reference_root_pos": vector_term(
                XYZ,
                "m",
                lambda now: rotate_inverse(
                    now.body_orientation(PELVIS), self._root_position[self._next_frame()] - now.body_position(PELVIS)
                ),
            ),
            "reference_root_rot": vector_term(
                XYZ,
                "rad",
                lambda now: rotate_inverse(
                    turn := now.body_orientation(PELVIS),
                    rotation_error(self._root_orientation[self._next_frame()], turn),
                ),
            ),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        self._length = self._length + running
        # Env slots that made no step keep their frame and sums.
        self._frame = torch.where(running, self._next_frame(), self._frame)
        missed = self.senses.joint_position() - self._joint_offset[self._frame]
        joint_error = torch.sqrt(terms.mean_square(missed))
        reference = (self._root_position, self._root_orientation, self._keypoints)
        keypoint_error, rise, turned, astray = _off_course(backend, *(each[self._frame] for each in reference))
        self._keypoint_errors = self._keypoint_errors + torch.where(running, keypoint_error, 0.0)
        self._joint_errors = self._joint_errors + torch.where(running, joint_error, 0.0)
        steps = self._length.clamp(min=1)
        mean_error = self._keypoint_errors / steps
        height, turn = rise.abs(), norm(turned)
        at_the_end = self._frame >= self._last_frame
        success = at_the_end & ~astray & (mean_error < LARGEST_KEYPOINT_ERROR_M)
        # The motion of a late start ends before the time limit, so a failure at its end is terminal.
        late = self._length < self._last_frame
        velocity = self.senses.joint_velocity() - self._joint_velocity[self._frame]
        reward = (
            1.0 * terms.closeness(joint_error, half_at=0.2)
            + 1.5 * terms.closeness(keypoint_error, half_at=0.08)
            + 0.5 * terms.closeness(turn, half_at=0.2)
            + 0.5 * terms.closeness(height, half_at=0.05)
            + 0.3 * terms.closeness(torch.sqrt(terms.mean_square(velocity)), half_at=2.0)
            - 0.5 * self.jerkiness(backend, running)
        )
        reward = self.control_dt * reward
        metrics = {"mpkpe_m": mean_error, "joint_error_rad": self._joint_errors / steps}
        return Verdict(reward=reward, success=success, lost=astray | (at_the_end & late & ~success), metrics=metrics)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        last = int(self._frame[env_id])
        first = last + 1 - len(moments.qpos)
        motion = self._motion
        position, orientation, keypoints = (
            torch.from_numpy(values[first : last + 1]).to(moments.qpos.dtype)
            for values in (motion.root_position, motion.root_orientation, motion.keypoints)
        )
        keypoint_error, rise, turned, too_far = _off_course(moments, position, orientation, keypoints)
        errors = keypoint_error.numpy()
        due = self._last_frame - first
        # The start is not judged. Once the sum of errors exceeds the limit for the whole motion, no later step can
        # lower it.
        mean_error = (errors.cumsum() - errors[0]) / due
        # The robot falls where the pelvis is too low, or tilts more than it yaws.
        yaw = turned[:, 2]
        falls = (rise < -FARTHEST_HEIGHT_M) | (dot(turned, turned) > 2 * yaw * yaw)
        astray = ever(too_far.numpy())
        lost = astray | (mean_error >= LARGEST_KEYPOINT_ERROR_M)
        return FloorFacts(
            dt_s=self.control_dt,
            share=np.arange(len(errors)) / due,
            lost=lost,
            fallen=ever((too_far & falls).numpy()),
            nearly=lost & ~astray[-1] & (mean_error[-1] < 2 * LARGEST_KEYPOINT_ERROR_M),
            strayed=lost,
        )

    def _next_frame(self) -> torch.Tensor:
        return (self._frame + 1).clamp(max=self._last_frame)

    def _frame_at(self, conditions: Conditions) -> int:
        return min(round(number(conditions["motion.start_s"]) / self.control_dt), self._last_frame - 1)


def _off_course(
    state: NamedState, position: torch.Tensor, orientation: torch.Tensor, keypoints: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compare a state with a motion's root (n, 3), (n, 4) and keypoints (n, p, 3)."""
    keypoint_error = terms.total(norm(site_positions(state, KEYPOINTS) - keypoints)) / len(KEYPOINTS)
    rise = (state.body_position(PELVIS) - position)[:, 2]
    turned = rotation_error(orientation, state.body_orientation(PELVIS))
    too_far = (rise.abs() > FARTHEST_HEIGHT_M) | (norm(turned) > FARTHEST_TURN_RAD)
    return keypoint_error, rise, turned, too_far  # mean distance (n,) [m], (n,) [m], (n, 3), (n,) bool


TRACK_MOTION = FloorEnvironmentBuilder(config_class=TrackMotionConfig, make_task=TrackMotion)
