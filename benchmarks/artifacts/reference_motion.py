"""Write the humanoid's reference motion: squat, raise both arms, wave, shift the weight.

Arms, waist, the pelvis' height and the centre of mass follow key frames. Pelvis and legs follow from them by inverse
kinematics: both soles stay flat in place, and the centre of mass stays over the feet, so a robot can make the
motion slowly on its own feet.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import mujoco
import numpy as np

from benchmarks.harness.measure import run
from isaaclab_arena.environments.tasks.track_motion import COLUMNS_OF_THE_ROOT
from isaaclab_arena.environments.tasks.walk_humanoid import FEET, HUMANOID, PELVIS
from isaaclab_arena.sim.scene import ASSETS, ScenePart, compose_scene

MOTION = ASSETS / "motions" / "squat_and_wave.csv"
FRAME_S = 0.02
DURATION_S = 6.0
DIGITS = 5

_ITERATIONS = 60
_TOLERANCE = 1e-8

Keys = tuple[tuple[float, float], ...]
"""Time [s] and value of key frames."""

PELVIS_HEIGHT: Keys = ((0.3, 0.0), (0.95, -0.28), (1.1, -0.28), (1.75, 0.0))
"""Above where the default posture has it [m]."""

MASS_ASIDE: Keys = ((3.9, 0.0), (4.3, 0.075), (4.45, 0.075), (5.0, -0.075), (5.15, -0.075), (5.6, 0.0))
"""The centre of mass to the left of the middle between the feet [m]."""

JOINTS: dict[str, Keys] = {
    "left_shoulder_pitch": ((0.3, 0.0), (0.95, -1.4), (1.1, -1.4), (1.75, 0.0)),
    "right_shoulder_pitch": ((0.3, 0.0), (0.95, -1.4), (1.1, -1.4), (1.75, 0.0)),
    "left_shoulder_roll": ((1.75, 0.0), (2.35, 2.0), (2.5, 2.0), (3.1, 0.0)),
    "right_shoulder_roll": ((1.75, 0.0), (2.35, -2.0), (3.9, -2.0), (4.6, 0.0)),
    "left_elbow": ((1.75, 0.0), (2.35, 0.3), (2.5, 0.3), (3.1, 0.0)),
    "right_elbow": (
        *((1.75, 0.0), (2.35, 0.3), (2.6, 0.3), (2.8, -0.9), (3.0, 0.3)),
        *((3.2, -0.9), (3.4, 0.3), (3.6, -0.9), (3.8, 0.3), (3.9, 0.3), (4.6, 0.0)),
    ),
    "waist_yaw": ((2.5, 0.0), (2.9, -0.4), (3.6, -0.4), (4.0, 0.0)),
    "waist_roll": ((3.9, 0.0), (4.3, 0.15), (4.45, 0.15), (5.0, -0.15), (5.15, -0.15), (5.6, 0.0)),
    "waist_pitch": ((0.3, 0.0), (0.95, 0.3), (1.1, 0.3), (1.75, 0.0)),
}
"""Joints away from the default posture [rad]."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    output: Path = MOTION  # The file.


def value_at(keys: Keys, time_s: float) -> float:
    """Return the value of key frames at a time: between two frames a curve that begins and ends at rest."""
    if time_s <= keys[0][0]:
        return keys[0][1]
    for (begin_s, begin), (end_s, end) in pairwise(keys):
        if time_s < end_s:
            share = (time_s - begin_s) / (end_s - begin_s)
            return begin + (end - begin) * share**3 * (10 - 15 * share + 6 * share**2)
    return keys[-1][1]


class Standing:
    """The humanoid with both soles on the floor, and the inverse kinematics that keeps them there."""

    def __init__(self) -> None:
        self.model = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=HUMANOID.asset),))
        self.data = mujoco.MjData(self.model)
        self.joint_qpos = [self.model.joint(name).qposadr[0] for name in HUMANOID.joints]
        self.default = np.array(HUMANOID.default_joint_position)
        legs = [name for name in HUMANOID.joints if name.endswith(("hip_yaw", "hip_roll", "hip_pitch"))]
        legs += [name for name in HUMANOID.joints if name.endswith(("knee", "ankle_pitch", "ankle_roll"))]
        self.moving = np.concatenate((np.arange(6), [self.model.joint(name).dofadr[0] for name in legs]))
        self.feet = [self.model.site(foot).id for foot in FEET]
        self.pelvis = self.model.body(PELVIS).id
        self.data.qpos[self.joint_qpos] = self.default
        mujoco.mj_forward(self.model, self.data)
        self.data.qpos[2] -= self.data.site_xpos[self.feet[0], 2]
        mujoco.mj_forward(self.model, self.data)
        self.soles = [(self.data.site_xpos[foot].copy(), self._quaternion(foot)) for foot in self.feet]
        self.middle = np.mean([place[:2] for place, _ in self.soles], axis=0)
        self.height = float(self.data.qpos[2])

    def pose(self, joints: np.ndarray, height: float, mass_aside: float) -> np.ndarray:
        """Return all positions for given joints above the hips [rad], pelvis height [m] and centre of mass [m]."""
        leg_dofs = set(self.moving.tolist())
        for name, address, value in zip(HUMANOID.joints, self.joint_qpos, joints, strict=True):
            if self.model.joint(name).dofadr[0] not in leg_dofs:
                self.data.qpos[address] = value
        for _ in range(_ITERATIONS):
            mujoco.mj_forward(self.model, self.data)
            error, jacobian = self._system(height, mass_aside)
            if np.abs(error).max() < _TOLERANCE:
                return self.data.qpos.copy()
            step = np.zeros(self.model.nv)
            step[self.moving] = np.linalg.solve(jacobian[:, self.moving], error)
            mujoco.mj_integratePos(self.model, self.data.qpos, step, 1.0)
        raise RuntimeError(f"no posture with the pelvis {height:.3f} m and the mass {mass_aside:.3f} m off")

    def _system(self, height: float, mass_aside: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors, and their derivatives by degree of freedom. Shapes: (18,), (18, nv)."""
        model, data = self.model, self.data
        errors, jacobians = [], []
        for foot, (place, turned) in zip(self.feet, self.soles, strict=True):
            translation, rotation = np.zeros((3, model.nv)), np.zeros((3, model.nv))
            mujoco.mj_jacSite(model, data, translation, rotation, foot)
            errors += [place - data.site_xpos[foot], _rotation(self._quaternion(foot), turned)]
            jacobians += [translation, rotation]
        mass, pelvis_turn = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSubtreeCom(model, data, mass, self.pelvis)
        mujoco.mj_jacBody(model, data, None, pelvis_turn, self.pelvis)
        lifted = np.zeros((1, model.nv))
        lifted[0, 2] = 1.0
        errors += [self.middle + np.array([0.0, mass_aside]) - data.subtree_com[self.pelvis, :2]]
        errors += [np.array([self.height + height - data.qpos[2]])]
        errors += [_rotation(data.xquat[self.pelvis], np.array([1.0, 0.0, 0.0, 0.0]))]
        return np.concatenate(errors), np.concatenate((*jacobians, mass[:2], lifted, pelvis_turn))

    def _quaternion(self, site: int) -> np.ndarray:
        quaternion = np.zeros(4)
        mujoco.mju_mat2Quat(quaternion, self.data.site_xmat[site])
        return quaternion


def _rotation(current: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the rotation vector in the world that leads from one orientation to another [rad]."""
    inverse, difference, vector = np.zeros(4), np.zeros(4), np.zeros(3)
    mujoco.mju_negQuat(inverse, current)
    mujoco.mju_mulQuat(difference, target, inverse)
    mujoco.mju_quat2Vel(vector, difference, 1.0)
    return vector


def frames() -> np.ndarray:
    """Return the motion: place and orientation of the pelvis, then the joints. Shape: (num_frames, 7 + num_joints)."""
    standing = Standing()
    names = [joint.rpartition("/")[2] for joint in HUMANOID.joints]
    motion = []
    for index in range(round(DURATION_S / FRAME_S) + 1):
        time_s = index * FRAME_S
        offset = np.array([value_at(JOINTS[name], time_s) if name in JOINTS else 0.0 for name in names])
        positions = standing.pose(
            standing.default + offset, value_at(PELVIS_HEIGHT, time_s), value_at(MASS_ASIDE, time_s)
        )
        motion.append(np.concatenate((positions[:7], positions[standing.joint_qpos])))
    return np.array(motion)


def written(motion: np.ndarray) -> str:
    """Return a motion as the text of its file."""
    names = [joint.rpartition("/")[2] for joint in HUMANOID.joints]
    lines = [",".join(("time_s", *COLUMNS_OF_THE_ROOT, *names))]
    for index, frame in enumerate(motion):
        # Adding 0 turns -0 into 0.
        numbers = (f"{round(float(value), DIGITS) + 0:.{DIGITS}f}" for value in frame)
        lines.append(",".join((f"{index * FRAME_S:.2f}", *numbers)))
    return "\n".join(lines) + "\n"


def main(options: Options) -> None:
    """Write the motion."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(written(frames()), encoding="utf-8")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    run(main, Options)
