"""What tasks share in which one object is grasped."""

import torch

from isaaclab_arena.environments import terms
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.robot import Robot
from isaaclab_arena.sim.scene import ContactSensor, ScenePart

OBJECT_BODY = "object/body"
OBJECT_JOINT = "object/free"
LEFT_TOUCH = "left_finger_touches_object"
RIGHT_TOUCH = "right_finger_touches_object"

_REACH_OF_GRASP_M = 0.08
_CLEARANCE_M = 0.008


def object_part(thing: ObjectAsset) -> ScenePart:
    """Return the object as a part of a scene."""
    return ScenePart(prefix="object", asset=thing.asset, position=(0.5, 0.0, thing.half_height))


def finger_sensors(robot: Robot) -> tuple[ContactSensor, ContactSensor]:
    """Return the sensors that tell whether each finger touches the object."""
    left, right = robot.finger_bodies
    return (
        ContactSensor(name=LEFT_TOUCH, body=left, other=OBJECT_BODY),
        ContactSensor(name=RIGHT_TOUCH, body=right, other=OBJECT_BODY),
    )


def touched(backend: Backend) -> torch.Tensor:
    """Return whether any finger touches the object. Shape: (num_envs,), bool."""
    return backend.touching(LEFT_TOUCH) | backend.touching(RIGHT_TOUCH)


def grasped(backend: Backend, robot: Robot) -> torch.Tensor:
    """Return whether both fingers touch the object and it is at the fingertips. Shape: (num_envs,), bool."""
    near = terms.distance(backend.site_position(robot.tcp_site), backend.body_position(OBJECT_BODY)) < _REACH_OF_GRASP_M
    return backend.touching(LEFT_TOUCH) & backend.touching(RIGHT_TOUCH) & near


def refuse_too_wide(thing: ObjectAsset, robot: Robot) -> None:
    """Refuse an object that the gripper cannot take.

    Raises:
        ConfigError: If the object is wider than the open gripper, less what is needed to get around it.
    """
    widest = robot.gripper_width - _CLEARANCE_M
    if thing.grasp_width > widest:
        raise ConfigError(
            Problem(
                f"object '{thing.name}' is {thing.grasp_width:.3f} m wide, but the gripper of '{robot.name}' takes at "
                f"most {widest:.3f} m",
                key="object",
            )
        )
