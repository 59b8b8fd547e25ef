"""Bring the tool centre point to a marked position."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, position_term
from isaaclab_arena.environments.mdp.task import Judgement, Task, draw_uniform, point
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ScenePart

TOLERANCE_M = 0.02
HOLD_STEPS = 5

_TARGET = "target/body"
_LOW = (0.35, -0.25, 0.10)
_HIGH = (0.60, 0.25, 0.45)


@dataclass(frozen=True, kw_only=True)
class ReachConfig(CameraOptions):
    """Options of ``reach``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class Reach(Task):
    """Solved when the tool centre point stays within 2 cm of the target for 0.25 s."""

    name = "reach"
    instruction = "move the gripper to the green marker"
    time_limit_s = 6.0
    parts = (ScenePart(prefix="target", asset="objects/target.xml"),)
    landmarks: Mapping[str, str] = MappingProxyType({"target": _TARGET})

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        self.robot = robot
        self.area = workspace.in_space(_LOW, _HIGH)

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        """Draw where the target is."""
        return {"target.position": draw_uniform(generator, *self.area)}

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the target in its place."""
        return StartState(mocap_positions={_TARGET: point(conditions["target.position"])})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the target's position."""
        return {"target_pos": position_term(lambda backend: backend.body_position(_TARGET))}

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the distance to the target."""
        distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.body_position(_TARGET))
        self.held_steps = terms.count_while(distance < TOLERANCE_M, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        return Judgement(
            reward=terms.closeness(distance, half_at=0.1) + success,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_distance_m": distance},
        )


def _make_task(config: ReachConfig, embodiment: Embodiment) -> Reach:
    del config
    return Reach(embodiment.robot, embodiment.workspace)


REACH = TableEnvironmentBuilder(config_class=ReachConfig, make_task=_make_task)
