"""The simulator's state in Isaac Lab's layout, for recordings."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from isaaclab_arena.environments.tasks.task import Task
from isaaclab_arena.interfaces.environment import StateTree
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.robot import Robot

_NOTHING: Mapping[str, str] = MappingProxyType({})


def state_tree(backend: Backend, robot: Robot, task: Task, more_objects: Mapping[str, str] = _NOTHING) -> StateTree:
    """Return positions and velocities of the robot and of all things, copied.

    ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
    ``rigid_object/<name>/{root_pose,root_velocity}``. Shapes: (num_envs, ...), float64 on the CPU.

    Args:
        backend: The simulation.
        robot: The robot in it.
        task: The task.
        more_objects: Loose objects that are not the task's: name to free joint.
    """
    articulations = {"robot": _articulation(backend, robot.base_body, (*robot.arm_joints, *robot.finger_joints))}
    for name, asset in task.articulations.items():
        articulations[name] = _articulation(backend, asset.root_body, asset.joints)
    rigid_objects = {
        name: {"root_pose": backend.joint_position(joint).clone(), "root_velocity": backend.free_velocity(joint)}
        for name, joint in {**task.rigid_objects, **more_objects}.items()
    }
    return {"articulation": articulations, "rigid_object": rigid_objects}


def _articulation(backend: Backend, root_body: str, joints: Sequence[str]) -> dict[str, torch.Tensor]:
    positions, dofs = backend.joint_indices(joints)
    root_pose = torch.cat((backend.body_position(root_body), backend.body_orientation(root_body)), dim=-1)
    return {
        "joint_position": backend.qpos[:, positions],
        "joint_velocity": backend.qvel[:, dofs],
        "root_pose": root_pose,
        "root_velocity": torch.zeros_like(root_pose[:, :6]),
    }
