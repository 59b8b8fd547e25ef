"""Pick up the one of two cubes that the instruction names."""

from collections.abc import Sequence
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
from isaaclab_arena.environments.tasks.manipulation.grasping import grasped, refuse_too_wide, tool_distance
from isaaclab_arena.environments.tasks.manipulation.two_cubes import COLOURS, TwoCubes
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot

LIFT_HEIGHT_M = 0.10
WRONG_HEIGHT_M = 0.05
HOLD_STEPS = 10

_COLOUR = "goal.colour"


@dataclass(frozen=True, kw_only=True)
class PickByColourConfig(CameraOptions):
    """Options of ``pick_by_colour``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class PickByColour(Task):
    """Solved when the named cube is 0.1 m above its resting height, held between both fingers, for 0.5 s.

    Which cube that is only the instruction says; no observation does. Lost when the other cube is lifted by 5 cm, or
    when a cube falls off the table.
    """

    name = "pick_by_colour"
    instruction = "pick up the cube of the named colour"
    time_limit_s = 8.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        self.robot = robot
        self.cubes = TwoCubes(workspace)
        self.parts = self.cubes.parts
        self.contact_sensors = self.cubes.finger_sensors(robot)
        self.rigid_objects = self.cubes.rigid_objects
        self.landmarks = self.cubes.landmarks
        self.sizes = CUBE.sizes()

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cubes stand, and which of them is asked for."""
        return {**self.cubes.draw(generator), _COLOUR: COLOURS[int(generator.uniform() < 0.5)]}

    def instruction_for(self, conditions: Conditions) -> str:
        """Return the instruction with the colour that was drawn."""
        return f"pick up the {conditions[_COLOUR]} cube"

    def start_state(self, conditions: Conditions) -> StartState:
        """Return both cubes upright on the table."""
        return StartState(joint_positions=self.cubes.joint_positions(conditions))

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the poses of both cubes."""
        return self.cubes.observation_terms()

    def attach(self, backend: Backend) -> None:
        """Make the counters, and room for which cube each env slot asks for."""
        super().attach(backend)
        self._wants_blue = torch.zeros(backend.num_envs, dtype=torch.bool, device=backend.device)

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Remember which cube is asked for. Shape of ``env_ids``: (n,), int64."""
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._wants_blue[env_id] = condition[_COLOUR] == "blue"

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the heights of both cubes and by what the fingers hold."""
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        wanted = torch.where(self._wants_blue[:, None], blue, red)
        other = torch.where(self._wants_blue[:, None], red, blue)
        held = torch.where(self._wants_blue, grasped(backend, self.robot, "blue"), grasped(backend, self.robot, "red"))
        distance = torch.where(
            self._wants_blue,
            tool_distance(backend, self.robot, "blue"),
            tool_distance(backend, self.robot, "red"),
        )
        height, other_height = wanted[:, 2] - CUBE.half_height, other[:, 2] - CUBE.half_height
        self.held_steps = terms.count_while(held & (height >= LIFT_HEIGHT_M), self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        raised = held * terms.progress(height, start=0.0, goal=LIFT_HEIGHT_M)
        wrong = other_height >= WRONG_HEIGHT_M
        return Judgement(
            reward=0.3 * terms.closeness(distance, half_at=0.1) + 0.2 * held + 0.5 * raised + success,
            success=success & ~wrong,
            lost=wrong | terms.off_the_table(red) | terms.off_the_table(blue),
            metrics={"final_height_m": height, "final_other_height_m": other_height},
        )


def _make_task(config: PickByColourConfig, embodiment: Embodiment) -> PickByColour:
    del config
    refuse_too_wide(CUBE, embodiment.robot)
    return PickByColour(embodiment.robot, embodiment.workspace)


PICK_BY_COLOUR = TableEnvironmentBuilder(config_class=PickByColourConfig, make_task=_make_task)
