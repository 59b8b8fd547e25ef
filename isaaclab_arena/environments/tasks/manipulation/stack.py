"""Put one cube on top of another and let go of it."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm
from isaaclab_arena.environments.mdp.task import Judgement, Task
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    at_rest,
    grasped,
    refuse_too_wide,
    tool_distance,
    touched,
)
from isaaclab_arena.environments.tasks.manipulation.two_cubes import TwoCubes
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor

HOLD_STEPS = 10

_CUBE_M = 2 * CUBE.half_height
_BESIDE_M = 0.02
_HEIGHT_TOLERANCE_M = 0.006
_AWAY_M = 0.05
_TOUCH = "red_touches_blue"


@dataclass(frozen=True, kw_only=True)
class StackConfig(CameraOptions):
    """Options of ``stack``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class Stack(Task):
    """Solved when the red cube stands on the blue one, both at rest and no finger on or near it, for 0.5 s.

    Its centre is within 2 cm of straight above the other's. Lost when a cube falls off the table.
    """

    name = "stack"
    instruction = "stack the red cube on the blue cube"
    time_limit_s = 12.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        self.robot = robot
        self.cubes = TwoCubes(workspace)
        self.parts = self.cubes.parts
        self.contact_sensors = (
            *self.cubes.finger_sensors(robot),
            ContactSensor(name=_TOUCH, body="red/body", other="blue/body"),
        )
        self.rigid_objects = self.cubes.rigid_objects
        self.landmarks = self.cubes.landmarks
        self.sizes = CUBE.sizes()

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cubes stand."""
        return self.cubes.draw(generator)

    def start_state(self, conditions: Conditions) -> StartState:
        """Return both cubes upright on the table."""
        return StartState(joint_positions=self.cubes.joint_positions(conditions))

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the poses of both cubes."""
        return self.cubes.observation_terms()

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by where the red cube is above the blue one, how both stand, their speeds, and the fingers."""
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        beside = terms.horizontal_distance(red, blue)
        above = red[:, 2] - blue[:, 2]
        on_top = (beside < _BESIDE_M) & ((above - _CUBE_M).abs() < _HEIGHT_TOLERANCE_M) & backend.touching(_TOUCH)
        on_top &= terms.upright(backend.body_orientation("blue/body"))
        tcp_distance = tool_distance(backend, self.robot, "red")
        let_go = ~touched(backend, "red") & ~touched(backend, "blue") & (tcp_distance > _AWAY_M)
        stands = on_top & at_rest(backend, "red") & at_rest(backend, "blue")
        self.held_steps = terms.count_while(stands & let_go, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        held = grasped(backend, self.robot, "red")
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | on_top)
            + 0.4 * (held | on_top) * terms.closeness(beside, half_at=0.1)
            + 0.2 * (stands & let_go)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=terms.off_the_table(red) | terms.off_the_table(blue),
            metrics={"final_beside_m": beside, "final_above_m": above},
        )


def _make_task(config: StackConfig, embodiment: Embodiment) -> Stack:
    del config
    refuse_too_wide(CUBE, embodiment.robot)
    return Stack(embodiment.robot, embodiment.workspace)


STACK = TableEnvironmentBuilder(config_class=StackConfig, make_task=_make_task)
