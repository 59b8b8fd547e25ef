"""Find the named parts of a compiled model, and compute its hash."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """Where the model keeps what its names stand for.

    Attributes:
        joint_qpos: Joint to its entries of ``qpos``.
        joint_dof: Joint to its entries of ``qvel``.
        actuators: Actuator to its entry of ``ctrl``.
        bodies: Body to its index in ``xpos`` and ``xquat``.
        sites: Site to its index in ``site_xpos``.
        sensors: Sensor to its entries of ``sensordata``.
        mocap_bodies: Mocap body to its index in ``mocap_pos``.
        free_joints: Body to the free joint that it has of its own.
    """

    joint_qpos: Mapping[str, slice]
    joint_dof: Mapping[str, slice]
    actuators: Mapping[str, int]
    bodies: Mapping[str, int]
    sites: Mapping[str, int]
    sensors: Mapping[str, slice]
    mocap_bodies: Mapping[str, int]
    free_joints: Mapping[str, str]


def model_names(model: mujoco.MjModel) -> ModelNames:
    """Return where a compiled model keeps its named parts."""
    free, ball = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
    joint_qpos, joint_dof, free_joints = {}, {}, {}
    for index in range(model.njnt):
        name, kind = model.joint(index).name, int(model.jnt_type[index])
        num_positions, num_dofs = {free: (7, 6), ball: (4, 3)}.get(kind, (1, 1))
        joint_qpos[name] = _part(model.jnt_qposadr[index], num_positions)
        joint_dof[name] = _part(model.jnt_dofadr[index], num_dofs)
        if kind == free:
            free_joints[model.body(int(model.jnt_bodyid[index])).name] = name
    bodies = {model.body(index).name: index for index in range(model.nbody)}
    return ModelNames(
        joint_qpos=joint_qpos,
        joint_dof=joint_dof,
        actuators={model.actuator(index).name: index for index in range(model.nu)},
        bodies=bodies,
        sites={model.site(index).name: index for index in range(model.nsite)},
        sensors={
            model.sensor(index).name: _part(model.sensor_adr[index], model.sensor_dim[index])
            for index in range(model.nsensor)
        },
        mocap_bodies={name: int(model.body_mocapid[i]) for name, i in bodies.items() if model.body_mocapid[i] >= 0},
        free_joints=free_joints,
    )


def model_sha256(model: mujoco.MjModel) -> str:
    """Return the SHA-256 of a compiled model: equal for equal physics, whatever simulates it."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


def _part(start: int, size: int) -> slice:
    return slice(int(start), int(start) + int(size))
