"""Pick an object up from the table and hold it in the air."""

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
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    OBJECT_BODY,
    OBJECT_JOINT,
    finger_sensors,
    grasped,
    object_part,
    refuse_too_wide,
)
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot

LIFT_HEIGHT_M = 0.10
HOLD_STEPS = 10

_LOW = (0.40, -0.20, -np.pi)
_HIGH = (0.60, 0.20, np.pi)


@dataclass(frozen=True, kw_only=True)
class LiftObjectConfig(CameraOptions):
    """Options of ``lift_object``.

    Attributes:
        embodiment: Registered name of the robot.
        object: Registered name of the object.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    object: str = "cube"
    action_mode: ActionModeName = "joint_position"


class LiftObject(Task):
    """Solved when the object is 0.1 m above its resting height, held between both fingers, for 0.5 s without a break.

    Lost when the object falls off the table.
    """

    name = "lift_object"
    time_limit_s = 8.0

    def __init__(self, robot: Robot, thing: ObjectAsset, workspace: Workspace) -> None:
        self.robot = robot
        self.area = workspace.on_table(_LOW, _HIGH)
        self.thing = thing
        self.instruction = f"pick up the {thing.words} and lift it"
        self.parts = (object_part(thing),)
        self.contact_sensors = finger_sensors(robot)
        self.rigid_objects = {thing.name: OBJECT_JOINT}
        self.landmarks = {"object": OBJECT_BODY}
        self.sizes = thing.sizes()

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        """Draw where the object stands and how it is turned."""
        x, y, yaw = draw_uniform(generator, *self.area)
        return {f"{self.thing.name}.position": (x, y, self.thing.half_height), f"{self.thing.name}.yaw": yaw}

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the object upright on the table."""
        position, yaw = conditions[f"{self.thing.name}.position"], conditions[f"{self.thing.name}.yaw"]
        return StartState(joint_positions={OBJECT_JOINT: upright_pose(position, yaw)})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the object's pose."""
        return body_pose_terms("object", OBJECT_BODY)

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the object's height and by what touches it."""
        position = backend.body_position(OBJECT_BODY)
        distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        height = position[:, 2] - self.thing.half_height
        held = grasped(backend, self.robot)
        self.held_steps = terms.count_while(held & (height >= LIFT_HEIGHT_M), self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        raised = held * terms.progress(height, start=0.0, goal=LIFT_HEIGHT_M)
        return Judgement(
            reward=0.3 * terms.closeness(distance, half_at=0.1) + 0.2 * held + 0.5 * raised + success,
            success=success,
            lost=terms.off_the_table(position),
            metrics={"final_height_m": height, "final_distance_m": distance},
        )


def _make_task(config: LiftObjectConfig, embodiment: Embodiment) -> LiftObject:
    thing = OBJECTS.get(config.object)
    refuse_too_wide(thing, embodiment.robot)
    return LiftObject(embodiment.robot, thing, embodiment.workspace)


LIFT_OBJECT = TableEnvironmentBuilder(config_class=LiftObjectConfig, make_task=_make_task)
