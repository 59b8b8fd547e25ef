"""Bring the tool centre point to a marked position."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments import terms
from isaaclab_arena.environments.actions import ActionModeName
from isaaclab_arena.environments.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.embodiments.embodiment import Embodiment
from isaaclab_arena.environments.observations import ObservationTerm, position_term
from isaaclab_arena.environments.tasks.task import Judgement, Task, draw_uniform, point
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.robot import Robot
from isaaclab_arena.sim.scene import ScenePart

TOLERANCE_M = 0.02
HOLD_STEPS = 5

_TARGET = "target/body"
_LOW = (0.35, -0.25, 0.10)
_HIGH = (0.60, 0.25, 0.45)


@dataclass(frozen=True, kw_only=True)
class ReachConfig:
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
    landmarks = {"target": _TARGET}

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self._held_steps = torch.zeros(0, dtype=torch.int64)

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        return {"target.position": draw_uniform(generator, _LOW, _HIGH)}

    def start_state(self, conditions: Conditions) -> StartState:
        return StartState(mocap_positions={_TARGET: point(conditions["target.position"])})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        return {"target_pos": position_term(lambda backend: backend.body_position(_TARGET))}

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        if len(self._held_steps) != backend.num_envs:
            self._held_steps = torch.zeros(backend.num_envs, dtype=torch.int64, device=backend.device)
        self._held_steps[env_ids] = 0

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.body_position(_TARGET))
        self._held_steps = terms.count_while(distance < TOLERANCE_M, self._held_steps, running)
        success = self._held_steps >= HOLD_STEPS
        return Judgement(
            reward=terms.closeness(distance, half_at=0.1) + success,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_distance_m": distance},
        )


def _make_task(config: ReachConfig, embodiment: Embodiment) -> Reach:
    del config
    return Reach(embodiment.robot)


REACH = TableEnvironmentBuilder(config_class=ReachConfig, make_task=_make_task)
