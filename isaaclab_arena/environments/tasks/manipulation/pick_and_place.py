"""Put an object into a bin and let go of it."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, body_pose_terms
from isaaclab_arena.environments.mdp.task import Judgement, Task, draw_uniform, upright_pose
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.bins import BIN_FLOOR_M, BIN_INSIDE_M, BIN_RIM_M, inside_bin
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    OBJECT_BODY,
    OBJECT_JOINT,
    at_rest,
    finger_sensors,
    grasped,
    object_part,
    refuse_too_wide,
    touched,
)
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

HOLD_STEPS = 5

_BIN_BODY = "bin/body"
_BIN_JOINT = "bin/free"
_BIN_TOUCH = "object_touches_bin"
_AWAY_M = 0.06
_LOW = (0.42, -0.22, -np.pi)
_HIGH = (0.58, -0.03, np.pi)
_BIN_LOW = (0.42, 0.20, -0.15)
_BIN_HIGH = (0.56, 0.27, 0.15)


@dataclass(frozen=True, kw_only=True)
class PickAndPlaceConfig(CameraOptions):
    """Options of ``pick_and_place``.

    Attributes:
        embodiment: Registered name of the robot.
        object: Registered name of the object.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    object: str = "cube"
    action_mode: ActionModeName = "joint_position"


class PickAndPlace(Task):
    """Solved when the object rests on the floor of the upright bin, and no finger is on or near it, for 0.25 s.

    Lost when the object or the bin falls off the table.
    """

    name = "pick_and_place"
    time_limit_s = 12.0

    def __init__(self, robot: Robot, thing: ObjectAsset, workspace: Workspace) -> None:
        self.robot = robot
        self.area = workspace.on_table(_LOW, _HIGH)
        self.bin_area = workspace.on_table(_BIN_LOW, _BIN_HIGH)
        self.thing = thing
        self.instruction = f"put the {thing.words} into the blue bin"
        self.parts = (
            object_part(thing),
            ScenePart(prefix="bin", asset="objects/bin.xml", position=(0.5, 0.25, 0.0)),
        )
        self.contact_sensors = (
            *finger_sensors(robot),
            ContactSensor(name=_BIN_TOUCH, body=OBJECT_BODY, other=_BIN_BODY),
        )
        self.rigid_objects = {thing.name: OBJECT_JOINT, "bin": _BIN_JOINT}
        self.landmarks = {"object": OBJECT_BODY, "bin": _BIN_BODY}
        self.sizes = {
            **thing.sizes(),
            "bin_floor": BIN_FLOOR_M,
            "bin_rim": BIN_RIM_M,
        }

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        """Draw where the object stands, on the robot's right, and the bin, on its left."""
        x, y, yaw = draw_uniform(generator, *self.area)
        bin_x, bin_y, bin_yaw = draw_uniform(generator, *self.bin_area)
        return {
            f"{self.thing.name}.position": (x, y, self.thing.half_height),
            f"{self.thing.name}.yaw": yaw,
            "bin.position": (bin_x, bin_y, 0.0),
            "bin.yaw": bin_yaw,
        }

    def start_state(self, conditions: Conditions) -> StartState:
        """Return object and bin, both upright on the table."""
        name = self.thing.name
        return StartState(
            joint_positions={
                OBJECT_JOINT: upright_pose(conditions[f"{name}.position"], conditions[f"{name}.yaw"]),
                _BIN_JOINT: upright_pose(conditions["bin.position"], conditions["bin.yaw"]),
            }
        )

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the poses of object and bin."""
        return {**body_pose_terms("object", OBJECT_BODY), **body_pose_terms("bin", _BIN_BODY)}

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by where the object is in the bin's frame, its speed, and the fingers."""
        position, bin_position = backend.body_position(OBJECT_BODY), backend.body_position(_BIN_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        inside = inside_bin(backend, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~touched(backend) & (tcp_distance > _AWAY_M)
        placed = inside & at_rest(backend) & backend.touching(_BIN_TOUCH) & let_go
        self.held_steps = terms.count_while(placed, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        bin_distance = terms.distance(position, bin_position)
        held = grasped(backend, self.robot)
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | inside)
            + 0.4 * (held | inside) * terms.closeness(bin_distance, half_at=0.15)
            + 0.2 * (inside & let_go)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=terms.off_the_table(position) | terms.off_the_table(bin_position),
            metrics={"final_bin_distance_m": bin_distance},
        )


def _make_task(config: PickAndPlaceConfig, embodiment: Embodiment) -> PickAndPlace:
    thing = OBJECTS.get(config.object)
    refuse_too_wide(thing, embodiment.robot)
    if thing.footprint_radius > BIN_INSIDE_M:
        raise ConfigError(
            Problem(
                f"object '{thing.name}' is {2 * thing.footprint_radius:.2f} m across and does not fit into the bin, "
                f"which is {2 * BIN_INSIDE_M:.2f} m wide inside",
                key="object",
            )
        )
    return PickAndPlace(embodiment.robot, thing, embodiment.workspace)


PICK_AND_PLACE = TableEnvironmentBuilder(config_class=PickAndPlaceConfig, make_task=_make_task)
