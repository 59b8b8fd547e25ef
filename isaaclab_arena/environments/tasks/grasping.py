"""The common parts of tasks in which objects are grasped: bins, two cubes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from isaaclab_arena.environments.events import Facts, approach, arm_facts, strayed
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Task, TaskSpec
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.objects import BLUE_CUBE, CUBE, ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Area, Embodiment
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import ConditionValue, draw_uniform
from isaaclab_arena.sim.backend import NamedState
from isaaclab_arena.sim.math import norm, rotate_inverse
from isaaclab_arena.sim.scene import ContactSensor, Robot

OBJECT_BODY = "object/body"
OBJECT_JOINT = "object/free"

CARRIED_M = 0.02
REACH_M = 0.08
NEARLY = 0.8

_REACH_OF_GRASP_M = 0.10
_CLEARANCE_M = 0.008
_AT_REST_M_S = 0.05


def object_thing(
    thing: ObjectAsset, *, prefix: str = "object", called: str = "", area: Area | None = None, observed_as: str = ""
) -> SceneObject:
    """Return an object on the table as a thing of a task's scene; see `SceneObject`."""
    return SceneObject(
        prefix=prefix,
        asset=thing.asset,
        position=(0.5, 0.0, thing.half_height),
        called=called or thing.name,
        area=area,
        loose=True,
        observed_as=observed_as or prefix,
    )


def finger_sensors(robot: Robot, prefix: str = "object") -> tuple[ContactSensor, ...]:
    """Return the contact sensors of the left and the right finger with an object."""
    return tuple(
        ContactSensor(name=_touch(side, prefix), body=finger, other=f"{prefix}/body")
        for side, finger in zip(("left", "right"), robot.fingers, strict=True)
    )


def touched(backend: NamedState, prefix: str = "object") -> torch.Tensor:
    """True where any finger touches an object. Shape: (num_envs,), bool."""
    return backend.touching(_touch("left", prefix)) | backend.touching(_touch("right", prefix))


def grasped(
    backend: NamedState, robot: Robot, prefix: str = "object", distance: torch.Tensor | None = None
) -> torch.Tensor:
    """True where both fingers touch an object at the fingertips; ``distance`` saves `tool_distance`. (num_envs,)."""
    both = backend.touching(_touch("left", prefix)) & backend.touching(_touch("right", prefix))
    return both & ((tool_distance(backend, robot, prefix) if distance is None else distance) < _REACH_OF_GRASP_M)


def tool_distance(backend: NamedState, robot: Robot, prefix: str = "object") -> torch.Tensor:
    """Return the distance from the tool centre point to an object's centre [m]. Shape: (num_envs,)."""
    return terms.distance(backend.site_position(robot.tcp_site), backend.body_position(f"{prefix}/body"))


class ObjectTask(Task):
    """A task with one object of the user's choice, called ``object`` in the scene."""

    def __init__(
        self,
        embodiment: Embodiment,
        thing: ObjectAsset,
        area: Area,
        *,
        things: tuple[SceneObject, ...] = (),
        sizes: Mapping[str, float] | None = None,
        **more: Any,
    ) -> None:
        # ``area`` is that of the object's starts on the reference table.
        placed = object_thing(thing, area=embodiment.workspace.on_table(*area))
        super().__init__(TaskSpec(things=(placed, *things), sizes={**thing.sizes(), **(sizes or {})}, **more))
        self.robot, self.thing = embodiment.robot, thing


class GraspFacts:
    """The hand's facts with one object in each moment of an episode, each (moments,); see `Facts`."""

    def __init__(self, moments: NamedState, robot: Robot, thing: ObjectAsset, prefix: str = "object") -> None:
        self.moments, self.robot = moments, robot
        self.position = moments.body_position(f"{prefix}/body")  # of the object's centre [m], (moments, 3)
        self.height_m = self.position[:, 2] - thing.half_height  # above its rest on the table [m]
        self.hand_m = tool_distance(moments, robot, prefix)  # from the tool centre point to its centre [m]
        self.reach_m = thing.half_height + REACH_M  # distance of the hand at which it is reached [m]
        self.held = grasped(moments, robot, prefix)  # between the fingers, bool
        self.carried = self.held & (self.height_m > CARRIED_M)  # held above the table, bool
        self.off_table = terms.off_the_table(self.position)

    def then(self, *stages: torch.Tensor, placed: torch.Tensor | bool = False, **more: Any) -> Facts:
        """Return the facts of a grasp, and of further stages; ``more`` adds facts or replaces some."""
        # An object that lies where it is to be (``placed``) does not stray.
        common: dict[str, Any] = {
            "stages": (approach(self.hand_m, self.reach_m), self.held, *stages),
            "arm": arm_facts(self.moments, self.robot),
            "taken": self.held,
            "strayed_m": strayed(self.position, self.held | placed),
            **{name: getattr(self, name) for name in ("hand_m", "reach_m", "carried", "off_table")},
        }
        return Facts(**{**common, **more})


def at_rest(backend: NamedState, prefix: str = "object") -> torch.Tensor:
    """True where an object moves more slowly than 5 cm/s. Shape: (num_envs,), bool."""
    return norm(backend.free_velocity(f"{prefix}/free")[:, :3]) < _AT_REST_M_S


def refuse_too_wide(thing: ObjectAsset, robot: Robot) -> None:
    """Raise ConfigError for an object wider than the open gripper less a clearance, or without a gripper."""
    _ = robot.fingers  # raises without a gripper
    width, widest = thing.grasp_width, robot.gripper_width - _CLEARANCE_M
    if width > widest:
        takes = f"the gripper of '{robot.name}' takes at most {widest:.3f} m"
        raise ConfigError(Problem(f"object '{thing.name}' is {width:.3f} m wide, but {takes}", key="object"))


def _touch(finger: str, prefix: str) -> str:
    return f"{finger}_finger_touches_{prefix}"


# Define the bin of ``objects/bin.xml``, and the condition of an object inside it.

BIN_INSIDE_M = 0.09
BIN_FLOOR_M = 0.008
BIN_RIM_M = 0.07
BIN_SIZES: Mapping[str, float] = {"bin_floor": BIN_FLOOR_M, "bin_rim": BIN_RIM_M}


def bin_thing(prefix: str, *, y: float, area: Area) -> SceneObject:
    """Return a bin that starts in an area of the table; the scene is compiled with it at ``y`` [m]."""
    return SceneObject(
        prefix=prefix, asset="objects/bin.xml", position=(0.5, y, 0.0), area=area, loose=True, observed_as=prefix
    )


def inside_bin(backend: NamedState, body: str, bin_body: str, *, half_height: float) -> torch.Tensor:
    """True where a body lies in an upright bin, not above its floor's level. Shape: (num_envs,), bool."""
    orientation = backend.body_orientation(bin_body)
    local = rotate_inverse(orientation, backend.body_position(body) - backend.body_position(bin_body))
    highest = BIN_FLOOR_M + half_height + 0.02  # 2 cm of tolerance [m]
    in_bin = terms.inside_box(local, (-BIN_INSIDE_M, -BIN_INSIDE_M, 0.0), (BIN_INSIDE_M, BIN_INSIDE_M, highest))
    return in_bin & terms.upright(orientation)


COLOURS = ("red", "blue")
CUBES = tuple(
    object_thing(cube, prefix=colour, called=f"{colour}_cube", observed_as=f"{colour}_cube")
    for colour, cube in zip(COLOURS, (CUBE, BLUE_CUBE), strict=True)
)

_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.10, -np.pi), (0.58, -0.07, np.pi)
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.07, -np.pi), (0.58, 0.10, np.pi)


class TwoCubesTask(Task):
    """A task with two cubes, ``red`` and ``blue``; conditions and recordings call them ``red_cube``, ``blue_cube``."""

    def __init__(
        self,
        embodiment: Embodiment,
        *,
        things: tuple[SceneObject, ...] = (),
        contact_sensors: tuple[ContactSensor, ...] = (),
        sizes: Mapping[str, float] | None = None,
        **more: Any,
    ) -> None:
        refuse_too_wide(CUBE, embodiment.robot)
        fingers = (sensor for colour in COLOURS for sensor in finger_sensors(embodiment.robot, colour))
        sensors, sizes = (*fingers, *contact_sensors), {**CUBE.sizes(), **(sizes or {})}
        super().__init__(TaskSpec(things=(*CUBES, *things), contact_sensors=sensors, sizes=sizes, **more))
        self.robot = embodiment.robot
        self.right = embodiment.workspace.on_table(_RIGHT_LOW, _RIGHT_HIGH)
        self.left = embodiment.workspace.on_table(_LEFT_LOW, _LEFT_HIGH)

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        places = [draw_uniform(generator, *self.right), draw_uniform(generator, *self.left)]
        if generator.uniform() < 0.5:
            places.reverse()
        conditions: dict[str, ConditionValue] = {}
        for cube, (x, y, yaw) in zip(CUBES, places, strict=True):
            conditions |= cube.placed(x, y, yaw)
        return {**conditions, **super().draw_conditions(generator)}
